"""LightGBM over Warren: distributed training that survives lost workers, with PyPI's LightGBM as it is.

    import lightgbm, warren, warren.lightgbm

    def make_dataset():
        x, y = load_share(comm.rank, comm.size)      # this worker's rows
        return lightgbm.Dataset(x, y)

    with warren.init() as comm:
        booster = warren.lightgbm.train(comm, {"objective": "binary"}, make_dataset, 200)

docs/lightgbm.md has the rest.
"""

from __future__ import annotations

import ctypes
import re
import typing

import lightgbm

from . import _core
from ._errors import InvalidArgument

if typing.TYPE_CHECKING:
    from ._communicator import Communicator

__all__ = ["train"]

basic: typing.Any = lightgbm.basic  # its network functions have no Python names

# LightGBM derives them from `seed`, if that is given, and they have these defaults.
SEEDS = {"bagging_seed": 3, "feature_fraction_seed": 2, "drop_seed": 4, "objective_seed": 5, "extra_seed": 6}

# In a model's text.
TREE_SIZES = re.compile(r"^tree_sizes=(.*)\n\n", re.MULTILINE)
COUNT_OF_ONE_LEAF = re.compile(r"(?<=\nleaf_count=)\d+")


def train(
    comm: Communicator,
    params: dict[str, typing.Any],
    make_dataset: typing.Callable[[], lightgbm.Dataset],
    num_boost_round: int = 100,
    *,
    checkpoint_every: int = 10,
    after_segment: typing.Callable[[int, lightgbm.Booster], object] | None = None,
) -> lightgbm.Booster:
    """Collective: trains one model on the rows of all ranks, and returns it on all of them, equal to the byte.

    params: LightGBM's, equal on all ranks; "tree_learner" is "data" unless it says "voting". (LightGBM's Python package
    has no "feature".)
    make_dataset: returns a new Dataset of this rank's rows, which has no init_score. It is called once in each life, and
    reads the same rows in each of them.
    checkpoint_every: the boosting rounds of a segment. A checkpoint is taken after each; a restarted worker begins at the
    last one. A segment begins with a new booster that continues from the model: what LightGBM keeps beside the model,
    such as the trees that dart may drop, lasts for a segment.
    after_segment: called after each checkpoint with the rounds that are done and the booster, and not for segments that
    the newest checkpoint holds.
    Loads the newest checkpoint: a program calls it once, and does not call load_checkpoint. Raises warren.Error for what
    goes wrong among the ranks, and lightgbm.basic.LightGBMError for what LightGBM finds wrong.
    """
    if checkpoint_every < 1 or num_boost_round < 0:
        raise ValueError(f"train: checkpoint_every is {checkpoint_every}, num_boost_round {num_boost_round}")
    all_params = _complete(params, comm.size)
    loaded = comm.load_checkpoint()
    model: str | None = None
    done = 0
    if loaded is not None:
        if not isinstance(loaded.state, dict) or loaded.state.keys() != {"model", "rounds"}:
            raise InvalidArgument("train: the newest checkpoint is not of train(): the program has changed since")
        model, done = loaded.state["model"], loaded.state["rounds"]
    # The voting learner's values of inner nodes, which predict nothing, are those of each rank's own rows.
    root = 0 if all_params["tree_learner"].startswith("voting") else None
    with _Network(comm) as network:
        # Ranks agree on the bins of features while they make the dataset: a restarted worker's does so alone.
        network.name_rounds("lightgbm dataset")
        data = make_dataset()
        if data.init_score is not None:
            raise ValueError("train: the dataset has an init_score, which later segments would not see")
        data.free_raw_data = False  # the next segment's booster starts from the model's predictions
        # An objective of the program's is the booster's alone.
        of_data = {name: value for name, value in _seeded(all_params, 0).items() if not callable(value)}
        data.params = {**of_data, **(data.params or {})}
        data.construct()
        network.name_rounds("")
        rows = comm.once("lightgbm rows").allreduce(data.num_data())
        while done < num_boost_round:
            rounds = min(checkpoint_every - done % checkpoint_every, num_boost_round - done)
            before = None if model is None else lightgbm.Booster(model_str=model)
            booster = lightgbm.train(_seeded(all_params, done), data, rounds, init_model=before)
            model, done = _counting_all(booster.model_to_string(), rows), done + rounds
            comm.checkpoint({"model": model, "rounds": done}, root=root)
            if after_segment is not None:
                after_segment(done, booster)
    if model is None:
        raise ValueError("train: num_boost_round is 0, and there is no checkpoint")
    return lightgbm.Booster(model_str=model if root is None else comm.broadcast_object(model, root))


def _complete(params: dict[str, typing.Any], size: int) -> dict[str, typing.Any]:
    aliases = basic._ConfigAliases.get(
        "machines", "machine_list_filename", "local_listen_port", "num_machines", "num_iterations"
    )
    if given := aliases & params.keys():
        raise ValueError(f"train: {', '.join(sorted(given))} in params: ranks and rounds are train()'s")
    every: dict[str, typing.Any] = {"verbosity": -1, "deterministic": True, "pre_partition": True, **params}
    every = basic._choose_param_value("tree_learner", every, "data" if size > 1 else "serial")
    learners = ("data", "voting") if size > 1 else ("serial", "data", "voting")
    if not str(every["tree_learner"]).startswith(learners):
        raise ValueError(
            f"train: tree_learner is {every['tree_learner']!r} and there are {size} ranks: 'data' and 'voting' are served"
        )
    every = basic._choose_param_value("boosting", every, "gbdt")
    if every["boosting"] in ("rf", "random_forest"):
        raise ValueError(f"train: boosting is {every['boosting']!r}, which goes on from no model; 'gbdt' and 'dart' are served")
    # LightGBM would grow them on each rank alone.
    every = basic._choose_param_value("linear_tree", every, False)
    if size > 1 and str(every["linear_tree"]).lower() not in ("false", "-", "0"):
        raise ValueError("train: linear_tree is set: LightGBM has no linear trees of several ranks")
    for name in ("seed", *SEEDS):
        every = basic._choose_param_value(name, every, None)
    # LightGBM measures which of the two is faster, and would choose otherwise from one life to the next.
    if not {"force_col_wise", "force_row_wise"} & every.keys():
        every["force_col_wise"] = True
    if size > 1:
        every["num_machines"] = size
    return every


def _seeded(params: dict[str, typing.Any], done: int) -> dict[str, typing.Any]:
    """Seeds that follow from the rounds that are done, so that each life draws the same in a segment."""
    seeded = dict(params)
    seed = seeded.pop("seed")
    for name, default in SEEDS.items():
        base = params[name] if params[name] is not None else default if seed is None else seed + default
        seeded[name] = (base + 1000003 * done) % 2**31
    return seeded


def _counting_all(model: str, rows: int) -> str:
    """The model, with the rows of all ranks as the count of each tree that has one leaf.

    LightGBM gives such a tree the rows of its own rank, and all other trees those of all ranks.
    """
    sizes = TREE_SIZES.search(model)
    if sizes is None or "\nnum_leaves=1\n" not in model:
        return model
    trees = []
    end = sizes.end()
    for size in map(int, sizes[1].split()):
        tree = model[end : end + size]
        end += size
        trees.append(COUNT_OF_ONE_LEAF.sub(str(rows), tree) if "\nnum_leaves=1\n" in tree else tree)
    line = f"tree_sizes={' '.join(str(len(tree)) for tree in trees)}\n\n"
    return "".join([model[: sizes.start()], line, *trees, model[end:]])


class _Network:
    """A block in which LightGBM's ranks, on this thread, are those of the communicator.

    The calls of LightGBM's are said to be made where the program has called train().
    """

    def __init__(self, comm: Communicator):
        self._ranks = comm.size
        self._network: typing.Any = _core.LightGbmNetwork(comm)
        if self._ranks > 1:
            code = basic._LIB.LGBM_NetworkInitWithFunctions(
                ctypes.c_int(comm.size),
                ctypes.c_int(comm.rank),
                ctypes.c_void_p(self._network.reduce_scatter),
                ctypes.c_void_p(self._network.allgather),
            )
            basic._safe_call(code)

    def __enter__(self) -> typing.Any:
        self._network.enter()
        return self._network

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        try:
            if kind is not None and issubclass(kind, basic.LightGBMError):
                self._network.raise_failure()
        finally:
            self._network.leave()
            if self._ranks > 1:
                basic._LIB.LGBM_NetworkFree()
