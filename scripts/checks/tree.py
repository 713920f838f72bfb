"""The files of the project: tracked ones and new ones that git does not ignore."""

import pathlib
import subprocess


def files(root: pathlib.Path, *suffixes: str) -> list[pathlib.Path]:
    """Paths relative to root, sorted; all files if no suffix is given. A folder without git is walked."""
    if (root / ".git").exists():
        output = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=root,
                                check=True, capture_output=True).stdout.decode()
        names = {pathlib.Path(name) for name in output.split("\0") if name}
    else:
        names = {path.relative_to(root) for path in root.rglob("*")}
    return sorted(name for name in names
                  if (root / name).is_file() and (not suffixes or name.suffix in suffixes))
