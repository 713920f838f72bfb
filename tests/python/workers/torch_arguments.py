"""Wrong arguments and calls are refused, in words that say what to do."""

import torch
import torch.distributed as dist

import warren
import warren.torch


def refused(error, words, function, *arguments, **options):
    try:
        function(*arguments, **options)
    except error as found:
        assert words in str(found), found
    else:
        raise AssertionError(words)


class Extra(torch.nn.Linear):
    def get_extra_state(self):
        return 1

    def set_extra_state(self, state):
        pass


def make(kind, **options):
    model = torch.nn.Linear(2, 2)
    return model, kind(model.parameters(), lr=0.1, **options)


comm = warren.torch.init(log_memory_bytes="64M")
refused(ValueError, "options come with the first call", warren.torch.init, streams=2)
refused(ValueError, "world_size is 5, and Warren's tracker says 1", dist.init_process_group, "warren", rank=0, world_size=5)
dist.init_process_group("warren", init_method="warren://")
assert warren.torch.init() is comm

x = torch.ones(2)
refused(RuntimeError, "give recv() its src", dist.recv, x)
refused(TypeError, "takes dense tensors, and this one is torch.sparse_coo", dist.all_reduce, x.to_sparse())
refused(ValueError, 'the backend "warren" has no', dist.all_reduce, x, dist._make_nccl_premul_sum(2.0))

refused(ValueError, "local names other", warren.torch.Training, local=["other"], model=torch.nn.Linear(2, 2))
refused(TypeError, "number is int, which has no state_dict", warren.torch.Training, number=3)
training = warren.torch.Training(model=Extra(2, 2))
refused(warren.InvalidArgument, "checkpoint comes after load", training.checkpoint)
refused(ValueError, "every is 0", training.epochs, 3, every=0)
assert training.load() == 0
refused(warren.InvalidArgument, "has loaded already", training.load)
refused(TypeError, "get_extra_state", training.checkpoint)

sampler = warren.torch.Sampler(10, seed=1)
refused(ValueError, "11 samples and seed 1, and in the checkpoint 10", warren.torch.Sampler(11, seed=1).load_state_dict,
        sampler.state_dict())


class Batches(list):
    """Batches of a program's own."""

    def __init__(self, sampler):
        super().__init__([[0, 1], [2]])
        self.sampler = sampler


# Batches use the samples of their own loader's sampler, and of no other; a sampler of batches says how many.
data = torch.arange(10)
validation = warren.torch.Sampler(4)
loader = torch.utils.data.DataLoader(data, batch_sampler=torch.utils.data.BatchSampler(sampler, 3, False))
training = warren.torch.Training(sampler=sampler, validation=validation)
batches = training.batches(loader)
assert [next(batches).numel(), next(batches).numel()] == [3, 3] and (sampler.used, validation.used) == (3, 0)
assert len(list(torch.utils.data.DataLoader(torch.arange(4), sampler=validation))) == 4
refused(ValueError, "batch_sampler is Batches, which has no batch_size", next,
        training.batches(torch.utils.data.DataLoader(data, batch_sampler=Batches(sampler))))
refused(ValueError, "none of them is the loader's own", next, training.batches(torch.utils.data.DataLoader(data)))
# In the midst of an epoch a part holds the loader's place, or that of the loader's sampler. Of a stream nobody knows.
without = warren.torch.Training(model=torch.nn.Linear(2, 2))
refused(ValueError, "the loader's sampler is no part", next, without.batches(torch.utils.data.DataLoader(data), every=2))
assert next(without.batches(torch.utils.data.DataLoader(data))) == 0 and next(without.batches([7], every=2)) == 7


class Place(torch.utils.data.SequentialSampler):
    """A sampler of a program's own."""

    state_dict = load_state_dict = None


place = Place(data)
assert next(warren.torch.Training(place=place).batches(torch.utils.data.DataLoader(data, sampler=place), every=2)) == 0

refused(TypeError, "optimizer is int", warren.torch.DistributedOptimizer, 3)
model, optimizer = make(torch.optim.SGD)
torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
refused(ValueError, "make its scheduler afterwards", warren.torch.DistributedOptimizer, optimizer)
model, optimizer = make(torch.optim.SGD)
refused(ValueError, "op is 'max'", warren.torch.DistributedOptimizer, optimizer, op="max")
optimizer = warren.torch.DistributedOptimizer(optimizer)
assert isinstance(optimizer, torch.optim.SGD)
refused(ValueError, "step takes no closure", optimizer.step, lambda: 0)
model(x).sum().backward()
refused(RuntimeError, "zero_grad comes after step", optimizer.zero_grad)
refused(RuntimeError, "give backward_passes_per_step", model(x).sum().backward)
optimizer.step()
refused(TypeError, "step is int", warren.torch.broadcast_parameters, {"step": 3})
dist.destroy_process_group()
