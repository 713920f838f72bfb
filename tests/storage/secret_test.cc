#include "storage/secret.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <grp.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zmq.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "recovery/base/limits.h"

namespace warren::storage {
namespace {

using testing::HasSubstr;
namespace fs = std::filesystem;

class SecretTest : public testing::Test {
 protected:
  SecretTest() {
    std::string pattern = fs::temp_directory_path() / "warren-secret-XXXXXX";
    dir_ = ::mkdtemp(pattern.data());
  }
  ~SecretTest() override { fs::remove_all(dir_); }

  std::string path(const std::string& name) const { return dir_ / name; }
  std::string write(const std::string& name, const std::string& text, mode_t mode = 0600) const {
    std::ofstream(path(name), std::ios::binary) << text;
    ::chmod(path(name).c_str(), mode);
    return path(name);
  }
  static std::string read(const std::string& file) {
    std::ifstream in(file, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  Secret root() const {
    const Status s = Secret::generate(path("root"));
    EXPECT_TRUE(s.ok()) << s.describe();
    return std::move(Secret::load(path("root"))).value();
  }

  fs::path dir_;
};

TEST_F(SecretTest, AGeneratedRootLoadsAndOnlyItsOwnerCanReadIt) {
  const ::mode_t before = ::umask(0);
  const Secret secret = root();
  ::umask(before);
  EXPECT_TRUE(secret.is_root());
  struct stat info {};
  ASSERT_EQ(::stat(path("root").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
}

TEST_F(SecretTest, GenerateNeverOverwrites) {
  write("taken", "precious");
  const Status s = Secret::generate(path("taken"));
  EXPECT_EQ(s.code(), Code::kInvalidArgument);
  EXPECT_THAT(s.describe(), HasSubstr(path("taken")));
  EXPECT_EQ(read(path("taken")), "precious");
}

TEST_F(SecretTest, TwoGeneratedRootsDiffer) {
  ASSERT_TRUE(Secret::generate(path("a")).ok());
  ASSERT_TRUE(Secret::generate(path("b")).ok());
  EXPECT_NE(read(path("a")), read(path("b")));
}

TEST_F(SecretTest, AJobsFileGivesTheSameCredentialsAsTheRoot) {
  const Secret from_root = root();
  ASSERT_TRUE(from_root.write_job_secret("train", path("job")).ok());
  const Secret from_job = std::move(Secret::load(path("job"))).value();
  EXPECT_FALSE(from_job.is_root());
  const JobCredentials a = from_root.for_job("train").value();
  const JobCredentials b = from_job.for_job("train").value();
  EXPECT_EQ(a.tracker_public_z85, b.tracker_public_z85);
  EXPECT_EQ(a.worker.public_z85, b.worker.public_z85);
  EXPECT_EQ(a.worker.secret_z85, b.worker.secret_z85);
  EXPECT_EQ(a.link_key, b.link_key);
  EXPECT_EQ(a.tracker_public_z85, from_root.tracker_keys().public_z85);
}

TEST_F(SecretTest, AJobsFileShowsNothingOfTheRoot) {
  const Secret secret = root();
  ASSERT_TRUE(secret.write_job_secret("train", path("job")).ok());
  const std::string text = read(path("root"));
  const std::string key = text.substr(text.find("key ") + 4, 64);
  EXPECT_EQ(read(path("job")).find(key), std::string::npos);
}

TEST_F(SecretTest, KeysOfJobsAndPurposesDiffer) {
  const Secret secret = root();
  const JobCredentials a = secret.for_job("a").value();
  const JobCredentials b = secret.for_job("b").value();
  EXPECT_NE(a.worker.public_z85, b.worker.public_z85);
  EXPECT_NE(a.link_key, b.link_key);
  EXPECT_NE(a.worker.public_z85, a.tracker_public_z85);
  EXPECT_EQ(a.tracker_public_z85, b.tracker_public_z85);
  const std::array<std::byte, 32> zero{};
  EXPECT_NE(a.link_key, zero);
}

// The derivation is a contract between versions: a changed label would lock every existing file out.
TEST_F(SecretTest, TheDerivationIsPinned) {
  const Secret secret =
      std::move(Secret::load(write("pinned", "warren-secret-1\nkey " + std::string(64, '7') + "\n"))).value();
  const JobCredentials credentials = secret.for_job("train").value();
  EXPECT_EQ(secret.tracker_keys().public_z85, "qm!8Yp}J[6TBuxTA{mO-C56=5a&IHtN]:ng{(daV");
  EXPECT_EQ(credentials.worker.public_z85, "bYH5tdVjsiF%DiPn&sR}ijPPKQLL#hkmRHW3[Bqg");
  EXPECT_EQ(static_cast<int>(credentials.link_key[0]), 71);  // as hashlib.blake2b computes it
}

TEST_F(SecretTest, KeysAreWhatZeroMqTakes) {
  const CurveKeys keys = root().tracker_keys();
  char derived[41] = {};
  ASSERT_EQ(zmq_curve_public(derived, keys.secret_z85.c_str()), 0);
  EXPECT_EQ(keys.public_z85, derived);
}

TEST_F(SecretTest, AnotherJobsFileIsRefusedByName) {
  ASSERT_TRUE(root().write_job_secret("train", path("job")).ok());
  const Secret secret = std::move(Secret::load(path("job"))).value();
  const Result<JobCredentials> other = secret.for_job("serve");
  ASSERT_FALSE(other.ok());
  EXPECT_EQ(other.status().code(), Code::kRefused);
  EXPECT_THAT(other.status().describe(), HasSubstr("job train"));
  EXPECT_THAT(other.status().describe(), HasSubstr("job serve"));
  EXPECT_EQ(secret.write_job_secret("serve", path("other")).code(), Code::kInvalidArgument);
  EXPECT_FALSE(fs::exists(path("other")));
}

TEST_F(SecretTest, OpenPermissionsAreRefusedWithTheCommandThatMendsThem) {
  ASSERT_TRUE(Secret::generate(path("root")).ok());
  for (const mode_t mode : {0640, 0604, 0620, 0660, 0601}) {
    ::chmod(path("root").c_str(), mode);
    const Result<Secret> secret = Secret::load(path("root"));
    ASSERT_FALSE(secret.ok()) << mode;
    EXPECT_EQ(secret.status().code(), Code::kRefused);
    EXPECT_THAT(secret.status().describe(), HasSubstr("chmod 600 " + path("root")));
  }
  ::chmod(path("root").c_str(), 0400);
  EXPECT_TRUE(Secret::load(path("root")).ok());
}

TEST_F(SecretTest, LinksAreFollowedButForeignFilesAreNot) {
  ASSERT_TRUE(Secret::generate(path("root")).ok());
  fs::create_symlink(path("root"), path("link"));
  EXPECT_TRUE(Secret::load(path("link")).ok());
  // Somebody else's file: made so where this test may, else one that the system has.
  std::string foreign = path("foreign");
  if (::geteuid() == 0) {
    ASSERT_TRUE(Secret::generate(foreign).ok());
    ASSERT_EQ(::chown(foreign.c_str(), 12345, 12345), 0);
  } else {
    foreign = "/etc/hostname";
  }
  fs::create_symlink(foreign, path("foreign-link"));
  const Result<Secret> secret = Secret::load(path("foreign-link"));
  ASSERT_FALSE(secret.ok());
  EXPECT_EQ(secret.status().code(), Code::kRefused);
  EXPECT_THAT(secret.status().describe(), HasSubstr("belongs to user id"));
}

// What a process of another user, in group 23456, comes to; empty: it loads.
std::string loaded_as_another(const std::string& file) {
  int ends[2];
  EXPECT_EQ(::pipe(ends), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const gid_t group = 23456;
    std::string said = "cannot become another user";
    if (::setgroups(1, &group) == 0 && ::setgid(12345) == 0 && ::setuid(12345) == 0) {
      said = Secret::load(file).status().describe();
    }
    (void)!::write(ends[1], said.data(), said.size());
    ::_exit(0);
  }
  ::close(ends[1]);
  std::string said;
  char byte = 0;
  while (::read(ends[0], &byte, 1) == 1) said += byte;
  ::close(ends[0]);
  EXPECT_EQ(::waitpid(child, nullptr, 0), child);
  return said;
}

// Kubernetes mounts secrets so for a user that is not root: files of root, which the group `fsGroup` may read.
TEST_F(SecretTest, AFileOfRootThatTheGroupMayReadIsTaken) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, to make a file of root's and become another user";
  ASSERT_TRUE(Secret::generate(path("root")).ok());
  ASSERT_EQ(::chmod(dir_.c_str(), 0755), 0);
  const auto as = [&](uid_t user, gid_t group, mode_t mode) {
    EXPECT_EQ(::chown(path("root").c_str(), user, group), 0);
    EXPECT_EQ(::chmod(path("root").c_str(), mode), 0);
    return loaded_as_another(path("root"));
  };
  EXPECT_EQ(as(0, 23456, 0440), "");
  EXPECT_EQ(as(0, 23456, 0640), "");
  EXPECT_EQ(as(12345, 12345, 0600), "");
  EXPECT_THAT(as(0, 23456, 0444), HasSubstr("belongs to user id 0"));
  EXPECT_THAT(as(0, 23456, 0460), HasSubstr("belongs to user id 0"));
  EXPECT_THAT(as(0, 23456, 0441), HasSubstr("belongs to user id 0"));
  EXPECT_THAT(as(54321, 23456, 0440), HasSubstr("belongs to user id 54321"));
  EXPECT_THAT(as(12345, 23456, 0440), HasSubstr("chmod 600"));
  EXPECT_THAT(as(0, 0, 0440), HasSubstr("Permission denied"));
}

TEST_F(SecretTest, WhatIsNoFileIsRefusedAndNeverHangs) {
  EXPECT_EQ(Secret::load(path("missing")).status().code(), Code::kUnavailable);
  EXPECT_EQ(Secret::load(dir_).status().code(), Code::kRefused);
  ASSERT_EQ(::mkfifo(path("fifo").c_str(), 0600), 0);
  EXPECT_EQ(Secret::load(path("fifo")).status().code(), Code::kRefused);
}

TEST_F(SecretTest, EveryMalformedFileIsCorrupt) {
  const std::string key(64, 'a');
  const std::string good = "warren-secret-1\nkey " + key + "\n";
  ASSERT_TRUE(Secret::load(write("good", good)).ok());
  const std::string bad[] = {
      "",
      "warren-secret-2\nkey " + key + "\n",
      "warren-secret-1",
      "warren-secret-1\n",
      "warren-secret-1\nkey " + key,
      "warren-secret-1\nkey " + key.substr(1) + "\n",
      "warren-secret-1\nkey " + key + "0\n",
      "warren-secret-1\nkey " + key.substr(1) + "g\n",
      "warren-secret-1\nkey " + key + "\nmore\n",
      "warren-secret-1\njob x\nkey " + key + "\n",
      "warren-secret-1\njob \ntracker " + key + "\nkey " + key + "\n",
      "warren-secret-1\njob a b\ntracker " + key + "\nkey " + key + "\n",
      "warren-secret-1\njob " + std::string(2000, 'j') + "\ntracker " + key + "\nkey " + key + "\n",
      "warren-secret-1\ntracker " + key + "\nkey " + key + "\n",
      std::string(100000, '\0'),
  };
  for (const std::string& text : bad) {
    const Result<Secret> secret = Secret::load(write("bad", text));
    ASSERT_FALSE(secret.ok()) << text;
    EXPECT_EQ(secret.status().code(), Code::kCorrupt) << text;
    EXPECT_THAT(secret.status().describe(), HasSubstr(path("bad")));
    EXPECT_THAT(secret.status().describe(), testing::Not(HasSubstr(key))) << "errors never show keys";
  }
  for (std::size_t cut = 0; cut < good.size(); ++cut) {
    EXPECT_FALSE(Secret::load(write("cut", good.substr(0, cut))).ok()) << cut;
  }
}

TEST_F(SecretTest, BadJobNamesAreRefused) {
  const Secret secret = root();
  for (const std::string& name : {std::string(), std::string("a\nb"), std::string(limits::kMaxJobNameBytes + 1, 'x')}) {
    EXPECT_EQ(secret.for_job(name).status().code(), Code::kInvalidArgument);
    EXPECT_EQ(secret.write_job_secret(name, path("bad-job")).code(), Code::kInvalidArgument);
    EXPECT_FALSE(fs::exists(path("bad-job")));
  }
}

}  // namespace
}  // namespace warren::storage
