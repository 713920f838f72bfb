"""install_test.py SOURCE BUILD CMAKE: what `cmake --install` leaves is enough to build and run a program elsewhere, the
library shows no symbol but its own, and the public headers compile by themselves, the C one as C."""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

SOURCE, BUILD = (pathlib.Path(argument).resolve() for argument in sys.argv[1:3])
CMAKE = sys.argv[3]
# Run with a loader path of the test's own, never with what the caller's environment happens to hold.
ENVIRONMENT = {name: value for name, value in os.environ.items()
               if name not in ("LD_LIBRARY_PATH", "CMAKE_PREFIX_PATH", "PKG_CONFIG_PATH") and not name.startswith("WARREN_")}


def run(*command, **options) -> str:
    result = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                            env=ENVIRONMENT | options.pop("env", {}), timeout=240, **options)
    if result.returncode != 0:
        raise AssertionError(f"{' '.join(map(str, command))} ended with {result.returncode}:\n{result.stdout}")
    return result.stdout


def exported_symbols(library: pathlib.Path) -> list[str]:
    """Names that a program which links the library can bind to."""
    return [line.split()[-1].split("@")[0]
            for line in run("nm", "--dynamic", "--defined-only", "--extern-only", library).splitlines() if line.strip()]


class Install(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory(prefix="warren-install-")
        cls.addClassCleanup(cls.folder.cleanup)
        cls.root = pathlib.Path(cls.folder.name)
        cls.prefix = cls.root / "prefix"
        run(CMAKE, "--install", BUILD, "--prefix", cls.prefix)
        cls.library = next(cls.prefix.glob("lib/**/libwarren.so"))

    def test_a_program_elsewhere_builds_and_two_workers_run_it(self):
        build = self.root / "consumer"
        run(CMAKE, "-S", SOURCE / "examples/out_of_tree", "-B", build, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release",
            f"-DCMAKE_PREFIX_PATH={self.prefix}")
        run(CMAKE, "--build", build)
        output = run(self.prefix / "bin/warren", "run", "-n", "2", "--", build / "hello", cwd=self.root)
        self.assertEqual(len(re.findall(r"\[2,2,4\]", output.replace(" ", ""))), 2, output)

    def run_program_of(self, page: str) -> str:
        """Builds the first C++ program of a page with the lines of CMake in docs/cpp.md; two workers run it."""
        program = re.search(r"^```cpp\n(.*?)^```", (SOURCE / page).read_text(), re.M | re.S).group(1)
        cmake = re.search(r"^```\n(find_package.*?)^```", (SOURCE / "docs/cpp.md").read_text(), re.M | re.S).group(1)
        project = self.root / pathlib.Path(page).stem
        project.mkdir()
        (project / "main.cc").write_text(program)
        (project / "CMakeLists.txt").write_text("cmake_minimum_required(VERSION 3.25)\nproject(p LANGUAGES CXX)\n"
                                                f"add_executable(program main.cc)\n{cmake}")
        run(CMAKE, "-S", project, "-B", project / "build", "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={self.prefix}")
        run(CMAKE, "--build", project / "build")
        return run(self.prefix / "bin/warren", "run", "-n", "2", "--", project / "build/program", cwd=self.root)

    def test_the_shortest_program_is_one(self):
        self.assertEqual(self.run_program_of("docs/cpp.md").count("2 2 4"), 2)

    def test_the_program_of_the_read_me_is_one(self):
        self.assertIn("end 1.4999602", self.run_program_of("README.md"))

    def test_the_version_is_checked(self):
        for wanted, good in (("0.1", True), ("99", False)):
            project = self.root / f"version{wanted}"
            project.mkdir()
            (project / "CMakeLists.txt").write_text(
                "cmake_minimum_required(VERSION 3.25)\nproject(p LANGUAGES CXX)\n"
                f"find_package(warren {wanted} REQUIRED)\n")
            result = subprocess.run([CMAKE, "-S", project, "-B", project / "build", f"-DCMAKE_PREFIX_PATH={self.prefix}"],
                                    capture_output=True, text=True, env=ENVIRONMENT)
            self.assertEqual(result.returncode == 0, good, result.stderr)

    def test_pkg_config_knows_it(self):
        path = {"PKG_CONFIG_PATH": str(self.library.parent / "pkgconfig")}
        flags = run("pkg-config", "--cflags", "--libs", "warren", env=path).split()
        program = self.root / "pc"
        source = self.root / "pc.c"
        source.write_text('#include <stdio.h>\n#include <warren/c_api.h>\nint main(void) { puts(warren_version()); return 0; }\n')
        run("gcc", "-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic", source, "-o", program, *flags)
        version = run(program).strip()  # it finds the library without the loader's help
        self.assertEqual(version, run("pkg-config", "--modversion", "warren", env=path).strip())

    def test_a_program_in_c_builds_by_pkg_config_and_two_workers_run_it(self):
        project = self.root / "in_c"
        shutil.copytree(SOURCE / "examples/out_of_tree_c", project)
        run("make", "-C", project, f"PKG_CONFIG_PATH={self.library.parent / 'pkgconfig'}",
            "CFLAGS=-std=c99 -Wall -Wextra -Werror -pedantic")
        output = run(self.prefix / "bin/warren", "run", "-n", "2", "--", project / "hello", cwd=self.root)
        self.assertEqual(output.count("[2,2,4]"), 2, output)

    def test_public_headers_stand_alone(self):
        headers = sorted((self.prefix / "include/warren").glob("*.h"))
        self.assertIn("c_api.h", {header.name for header in headers})
        for header in headers:
            source = self.root / f"{header.stem}.cc"
            source.write_text(f"#include <warren/{header.name}>\n#include <warren/{header.name}>\n")
            run("g++", "-std=c++20", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", f"-I{self.prefix}/include", source)

    def test_rabits_headers_stand_alone_in_old_standards(self):
        headers = sorted(path.relative_to(self.prefix / "include") for path in (self.prefix / "include").glob("rabit*/**/*.h"))
        headers.append(pathlib.Path("rabit.h"))
        self.assertGreater(len(headers), 7)
        for header in headers:
            source = self.root / "rabit_header.cc"
            source.write_text(f"#include <{header}>\n#include <{header}>\n")
            for standard in ("c++11", "c++20"):
                run("g++", f"-std={standard}", "-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Wconversion",
                    "-Wno-sign-conversion", "-Werror", "-fsyntax-only", f"-I{self.prefix}/include", source)
        source = self.root / "rabit_header.c"
        source.write_text("#include <rabit/c_api.h>\nint main(void) { return RabitLinkTag(); }\n")
        run("gcc", "-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic", "-fsyntax-only", f"-I{self.prefix}/include", source)

    def stand_in_for_dmlc_core(self, folder: pathlib.Path, returned: str) -> None:
        """Writes <dmlc/io.h>, whose Stream::Write returns `returned`."""
        (folder / "dmlc").mkdir(parents=True)
        (folder / "dmlc/io.h").write_text("""
            #pragma once
            #include <cstddef>
            namespace dmlc {
            struct Stream {
              virtual size_t Read(void*, size_t) = 0;
              virtual WRITTEN Write(const void*, size_t) = 0;
              virtual ~Stream() {}
              template <typename T> void Write(const T& value) { Write(&value, sizeof value); }
              template <typename T> bool Read(T* value) { return Read(value, sizeof *value) == sizeof *value; }
            };
            struct SeekStream : Stream { virtual void Seek(size_t) = 0; virtual size_t Tell() = 0; };
            struct Serializable {
              virtual ~Serializable() {}
              virtual void Load(Stream*) = 0;
              virtual void Save(Stream*) const = 0;
            };
            }
        """.replace("WRITTEN", returned))

    def test_rabits_streams_are_dmlc_cores_where_it_is_of_any_age(self):
        source = self.root / "dmlc.cc"
        source.write_text("""
            #include <rabit/rabit.h>
            struct Model : dmlc::Serializable {
              double value = 7;
              void Load(dmlc::Stream* from) override { from->Read(&value); }
              void Save(dmlc::Stream* to) const override { to->Write(value); }
            };
            int main() {
              std::string bytes;
              rabit::utils::MemoryBufferStream to(&bytes);
              Model().Save(&to);
              rabit::utils::MemoryFixSizeBuffer from(&bytes[0], bytes.size());
              Model read;
              read.value = 0;
              read.Load(&from);
              rabit::CheckPoint(&read);
              return read.value == 7 ? 0 : 1;
            }
        """)
        for returned in ("void", "size_t"):  # before and since May 2024
            stand_in = self.root / f"dmlc_{returned}"
            self.stand_in_for_dmlc_core(stand_in, returned)
            program = self.root / f"dmlc_program_{returned}"
            run("g++", "-std=c++14", "-Wall", "-Wextra", "-Werror", source, "-o", program, f"-I{self.prefix}/include",
                f"-I{stand_in}", f"-L{self.library.parent}", f"-Wl,-rpath,{self.library.parent}", "-lrabit", "-lwarren")
            run(program)

    def test_rabits_libraries_by_name_both_shared_and_static(self):
        for library in ("librabit.so", "librabit.a", "librabit_mock.so", "librabit_mock_static.a"):
            self.assertTrue((self.library.parent / library).exists(), library)
        source = SOURCE / "tests/rabit/programs/basic.cc"
        for library in ("-lrabit", "-lrabit_mock", "-lrabit_mock_static"):
            program = self.root / library.lstrip("-")
            run("g++", "-std=c++11", source, "-o", program, f"-I{self.prefix}/include", f"-L{self.library.parent}",
                f"-Wl,-rpath,{self.library.parent}", library, "-lwarren")
            output = run(self.prefix / "bin/warren", "run", "-n", "2", "--", program, cwd=self.root)
            self.assertEqual(output.count("a={2, 4, 6}"), 2, output)

    def rabit_project(self, name: str, how: str) -> pathlib.Path:
        project = self.root / name
        project.mkdir()
        (project / "main.cc").write_bytes((SOURCE / "tests/rabit/programs/basic.cc").read_bytes())
        (project / "common.h").write_bytes((SOURCE / "tests/rabit/programs/common.h").read_bytes())
        (project / "CMakeLists.txt").write_text(
            f"cmake_minimum_required(VERSION 3.25)\nproject(p LANGUAGES C CXX)\nset(CMAKE_CXX_STANDARD 11)\n{how}\n"
            "add_executable(program main.cc)\ntarget_link_libraries(program PRIVATE rabit)\n"
            "add_executable(mock main.cc)\ntarget_link_libraries(mock PRIVATE rabit_mock_static)\n")
        run(CMAKE, "-S", project, "-B", project / "build", "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={self.prefix}",
            "-DWARREN_TESTS=OFF")
        return project

    def test_a_program_for_rabit_is_built_by_find_package(self):
        build = self.rabit_project("rabit", "find_package(warren REQUIRED)") / "build"
        run(CMAKE, "--build", build)
        for program in ("program", "mock"):
            output = run(self.prefix / "bin/warren", "run", "-n", "2", "--", build / program, cwd=self.root)
            self.assertEqual(output.count("a={2, 4, 6}"), 2, output)

    def link_with_the_libraries_of_this_build(self, build: pathlib.Path, target: str, libraries: int) -> None:
        """The whole build would take minutes: `target` is linked by its own command, with what lies in BUILD."""
        link = run("ninja", "-C", build, "-t", "commands", target).splitlines()[-1]
        link, found = re.subn(r"\S*/lib((?:rabit|rabit_mock_static)\.a|warren\.so)[.\d]*(?=\s)",
                              lambda match: str(BUILD / "lib" / f"lib{match.group(1)}"), link)
        self.assertEqual(found, libraries, link)
        subprocess.run(link, shell=True, check=True, cwd=build)

    def test_a_program_for_rabit_is_built_by_add_subdirectory(self):
        build = self.rabit_project("subdirectory", f"add_subdirectory({SOURCE} warren EXCLUDE_FROM_ALL)") / "build"
        for program in ("program", "mock"):
            run(CMAKE, "--build", build, "--target", f"CMakeFiles/{program}.dir/main.cc.o")
            self.link_with_the_libraries_of_this_build(build, program, 2)
            output = run(build / program, env={"LD_LIBRARY_PATH": str(BUILD / "lib")})
            self.assertIn("after-allreduce-sum: a={0, 1, 2}", output)

    def project_like_xgboost(self, name: str, how: str) -> pathlib.Path:
        """A project that uses rabit's targets as XGBoost's does: from a folder `rabit`, in the plain form of
        target_link_libraries, with dmlc-core as a target of its own that it adds to them. Returns its build folder."""
        project = self.root / name
        (project / "rabit").mkdir(parents=True)
        (project / "rabit/CMakeLists.txt").write_text(how)
        self.stand_in_for_dmlc_core(project / "dmlc-core", "void")
        (project / "dmlc-core/dmlc.cc").write_text("int dmlc_is_linked = 1;\n")
        (project / "main.cc").write_text("""
            #include <rabit/base.h>
            #include <rabit/c_api.h>
            #include <rabit/rabit.h>
            struct Model : dmlc::Serializable {
              void Load(dmlc::Stream*) override {}
              void Save(dmlc::Stream*) const override {}
            };
            extern int dmlc_is_linked;
            int main(int argc, char** argv) {
              rabit::Init(argc, argv);
              int values[] = {rabit::GetRank(), dmlc_is_linked};
              rabit::Allreduce<rabit::op::Sum>(values, 2);
              std::printf("ranks add up to %d, dmlc to %d\\n", values[0], values[1]);
              rabit::Finalize();
            }
        """)
        (project / "CMakeLists.txt").write_text("""
            cmake_minimum_required(VERSION 3.13)
            project(p LANGUAGES CXX C)
            find_package(Threads REQUIRED)
            add_library(objects OBJECT main.cc)
            set_target_properties(objects PROPERTIES POSITION_INDEPENDENT_CODE ON CXX_STANDARD 14)
            add_library(dmlc STATIC dmlc-core/dmlc.cc)
            target_include_directories(dmlc PUBLIC dmlc-core)
            target_link_libraries(objects PUBLIC dmlc)
            add_subdirectory(rabit)
            target_link_libraries(objects PUBLIC rabit)
            foreach(lib rabit rabit_base rabit_empty rabit_mock rabit_mock_static)
              if(TARGET ${lib})
                target_link_libraries(${lib} dmlc ${CMAKE_THREAD_LIBS_INIT})
                target_compile_options(${lib} PRIVATE -Wall -Wextra)
              endif()
            endforeach()
            foreach(target objects dmlc rabit rabit_mock_static)
              set_target_properties(${target} PROPERTIES CXX_VISIBILITY_PRESET hidden)
            endforeach()
            add_executable(program)
            target_link_libraries(program PRIVATE objects)
            install(TARGETS program EXPORT pTargets)
            install(EXPORT pTargets FILE pTargets.cmake NAMESPACE p:: DESTINATION lib/cmake/p)
        """)
        run(CMAKE, "-S", project, "-B", project / "build", "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={self.prefix}")
        return project / "build"

    def test_a_project_that_treats_rabits_targets_as_xgboost_does_finds_the_package(self):
        build = self.project_like_xgboost("finds", "find_package(warren REQUIRED)\n")
        run(CMAKE, "--build", build)
        output = run(self.prefix / "bin/warren", "run", "-n", "2", "--", build / "program", cwd=self.root)
        self.assertEqual(output.count("ranks add up to 1, dmlc to 2"), 2, output)
        run(CMAKE, "--install", build, "--prefix", build / "prefix")

    def test_a_project_that_treats_rabits_targets_as_xgboost_does_contains_warren(self):
        build = self.project_like_xgboost("contains", f"add_subdirectory({SOURCE} warren)\n")
        run(CMAKE, "--build", build, "--target", "objects", "dmlc")
        self.link_with_the_libraries_of_this_build(build, "program", 2)
        output = run(build / "program", env={"LD_LIBRARY_PATH": str(BUILD / "lib")})
        self.assertIn("ranks add up to 0, dmlc to 1", output)
        # Targets that the outer project does not link are neither built nor installed.
        planned = run("ninja", "-C", build, "-n", "all")
        self.assertNotIn("chaos", planned)
        self.assertNotIn("gtest", planned)

    def test_no_symbol_but_its_own(self):
        foreign = [name for name in exported_symbols(self.library) if not name.startswith("warren_")]
        self.assertEqual(foreign, [])

    def test_every_function_of_the_c_header_is_there(self):
        header = (self.prefix / "include/warren/c_api.h").read_text()
        declared = set(re.findall(r"^WARREN_API [^;(]*?\b(warren_\w+)\(", header, re.M))
        self.assertGreater(len(declared), 20)
        self.assertEqual(declared - set(exported_symbols(self.library)), set())


class ExportedSymbols(unittest.TestCase):
    """The check of symbols sees what it must see."""

    def test_a_leak_is_found(self):
        with tempfile.TemporaryDirectory() as folder:
            source = pathlib.Path(folder) / "a.cc"
            source.write_text('extern "C" void warren_a() {}\nvoid leak() {}\nstatic void hidden() {}\nvoid (*p)() = hidden;\n')
            library = pathlib.Path(folder) / "a.so"
            run("g++", "-shared", "-fPIC", source, "-o", library)
            self.assertEqual({name for name in exported_symbols(library) if not name.startswith("warren_")}, {"_Z4leakv", "p"})


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
