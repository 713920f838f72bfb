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

    def test_the_shortest_program_of_the_read_me_is_one(self):
        readme = (SOURCE / "README.md").read_text()
        program = re.search(r"^```cpp\n(.*?)^```", readme, re.M | re.S).group(1)
        cmake = re.search(r"^```\n(find_package.*?)^```", readme, re.M | re.S).group(1)
        project = self.root / "readme"
        project.mkdir()
        (project / "main.cc").write_text(program)
        (project / "CMakeLists.txt").write_text("cmake_minimum_required(VERSION 3.25)\nproject(p LANGUAGES CXX)\n"
                                                f"add_executable(program main.cc)\n{cmake}")
        run(CMAKE, "-S", project, "-B", project / "build", "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={self.prefix}")
        run(CMAKE, "--build", project / "build")
        run(self.prefix / "bin/warren", "run", "-n", "2", "--", project / "build/program", cwd=self.root)

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

    def test_rabits_streams_are_dmlc_cores_where_it_is(self):
        folder = self.root / "stand_in/dmlc"
        folder.mkdir(parents=True)
        (folder / "io.h").write_text("""
            #pragma once
            #include <cstddef>
            namespace dmlc {
            struct Stream {
              virtual size_t Read(void*, size_t) = 0;
              virtual void Write(const void*, size_t) = 0;
              virtual ~Stream() {}
              template <typename T> void Write(const T&) {}
              template <typename T> bool Read(T*) { return true; }
            };
            struct SeekStream : Stream { virtual void Seek(size_t) = 0; virtual size_t Tell() = 0; };
            struct Serializable {
              virtual ~Serializable() {}
              virtual void Load(Stream*) = 0;
              virtual void Save(Stream*) const = 0;
            };
            }
        """)
        source = self.root / "dmlc.cc"
        source.write_text("""
            #include <rabit/rabit.h>
            struct Model : dmlc::Serializable {
              void Load(dmlc::Stream*) override {}
              void Save(dmlc::Stream*) const override {}
            };
            void f(Model* m) { rabit::CheckPoint(m); }
        """)
        run("g++", "-std=c++14", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", f"-I{self.prefix}/include",
            f"-I{self.root}/stand_in", source)

    def rabit_project(self, name: str, how: str) -> pathlib.Path:
        project = self.root / name
        project.mkdir()
        (project / "main.cc").write_bytes((SOURCE / "tests/worker/rabit/programs/basic.cc").read_bytes())
        (project / "common.h").write_bytes((SOURCE / "tests/worker/rabit/programs/common.h").read_bytes())
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

    def test_a_program_for_rabit_is_built_by_add_subdirectory(self):
        build = self.rabit_project("subdirectory", f"add_subdirectory({SOURCE} warren EXCLUDE_FROM_ALL)") / "build"
        for program in ("program", "mock"):
            run(CMAKE, "--build", build, "--target", f"CMakeFiles/{program}.dir/main.cc.o")
            # The whole build would take minutes: it is linked by its own command, with the libraries of this one.
            link = run("ninja", "-C", build, "-t", "commands", program).splitlines()[-1]
            link, libraries = re.subn(r"\S*/lib((?:rabit|rabit_mock_static)\.a|warren\.so)[.\d]*(?=\s)",
                                      lambda found: str(BUILD / "lib" / f"lib{found.group(1)}"), link)
            self.assertEqual(libraries, 2, link)
            subprocess.run(link, shell=True, check=True, cwd=build)
            output = run(build / program, env={"LD_LIBRARY_PATH": str(BUILD / "lib")})
            self.assertIn("after-allreduce-sum: a={0, 1, 2}", output)

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
