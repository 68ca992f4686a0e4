"""Files that are written completely or not at all, and whose content is checked when read.

Every write goes to a temporary file beside the target, which is flushed to the disk and then
renamed to the target. A reader therefore never sees a partial file, even after a crash.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import hashlib
import json
import os
import platform
import stat
import tempfile
import time
import zipfile
from collections.abc import Container, Mapping
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
from torch import Tensor

from recollect.errors import FileError
from recollect.system.signals import note_written, postponed

_TEMPORARY = ".recollect-"
"""Part of the name of every temporary file, so that the files of a killed run can be distinguished
from those of other programs."""
_WRITER = hashlib.sha256(platform.node().encode()).hexdigest()[:8] + "-"
"""Host part of a temporary file's name; the process id follows."""


def write_files(contents: Mapping[Path, bytes], *, private: Container[Path] = ()) -> None:
    """Write several files: first all of them to temporary files on the disk, and then rename these
    one by one.

    If one of them cannot be written, no target is changed. After a crash between two renames, some
    of the targets are new and the others old. A signal that asks the process to end waits until all
    of them are written. Files in `private` can be read and written by their owner alone (mode
    0600); the others get ordinary permissions.
    """
    with postponed():
        _write(contents, private)
        note_written(contents)


def _write(contents: Mapping[Path, bytes], private: Container[Path]) -> None:
    staged: dict[Path, str] = {}
    made = [
        folder
        for path in contents
        for folder in (path.parent, *path.parent.parents)
        if not folder.exists()
    ]
    try:
        for path, content in contents.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.is_dir():
                raise IsADirectoryError(errno.EISDIR, f"{path.name} is a folder")
            handle, staged[path] = _temporary(path)
            with os.fdopen(handle, "wb") as stream:
                stream.write(content)
                stream.flush()
                os.fsync(stream.fileno())
            if path not in private:  # mkstemp creates a private file
                os.chmod(staged[path], 0o666 & ~_umask())
        for path in contents:
            os.replace(staged[path], path)
            del staged[path]
    except BaseException as error:
        for temporary in staged.values():
            with contextlib.suppress(OSError):
                os.unlink(temporary)
        for folder in made:  # innermost first; a folder that is not empty stays
            with contextlib.suppress(OSError):
                folder.rmdir()
        if isinstance(error, OSError):
            target = next(iter(staged), next(iter(contents)))
            raise FileError(
                f"expected to write {target}, got: {error.strerror or error}; free space or choose "
                "another --out"
            ) from None
        raise


def _temporary(path: Path) -> tuple[int, str]:
    """A new temporary file beside the target, open for writing. Those that killed runs left for the
    same target are removed."""
    for left in path.parent.glob(f".{glob.escape(path.name)}{_TEMPORARY}*"):
        if _abandoned(left):
            left.unlink(missing_ok=True)
    prefix = f".{path.name}{_TEMPORARY}{_WRITER}{os.getpid()}-"
    return tempfile.mkstemp(dir=path.parent, prefix=prefix)


def _abandoned(temporary: Path) -> bool:
    """Whether the writer of the file was killed: its process on this machine has ended, or the file
    is from another machine and more than a day old."""
    host, _, rest = temporary.name.rpartition(_TEMPORARY)[2].partition("-")
    writer = rest.partition("-")[0]
    if f"{host}-" == _WRITER and writer.isdecimal():
        try:
            os.kill(int(writer), 0)
        except ProcessLookupError:
            return True
        except (OSError, OverflowError):
            return False
        return False
    try:
        return not writer.isdecimal() or time.time() - temporary.stat().st_mtime > 86_400
    except OSError:
        return False


def check_writable(folder: Path) -> None:
    """Raise a `FileError` if no files can be written to the folder. This is checked before a long
    run and leaves nothing behind."""
    check_name(folder)
    made = [parent for parent in (folder, *folder.parents) if not parent.exists()]
    with postponed():
        try:
            folder.mkdir(parents=True, exist_ok=True)
            handle, name = _temporary(folder / "probe")
            os.close(handle)
            os.unlink(name)
        except OSError as error:
            raise FileError(
                f"expected a folder to write to, got {folder}: {error.strerror}; choose another "
                "--out"
            ) from None
        finally:
            for parent in made:
                with contextlib.suppress(OSError):
                    parent.rmdir()


def _umask() -> int:
    umask = os.umask(0)
    os.umask(umask)
    return umask


def write_bytes(path: Path, content: bytes, *, private: bool = False) -> None:
    write_files({path: content}, private=(path,) if private else ())


def json_bytes(content: Mapping[str, Any]) -> bytes:
    """JSON that can be read back: what is no Unicode in the name of a file becomes a question
    mark."""
    text = json.dumps(content, indent=2, allow_nan=False, ensure_ascii=False)
    return (text + "\n").encode(errors="replace")


def not_a_file(path: Path) -> str | None:
    """What is at the path instead of a regular file; None if there is one.

    Every reader asks this first: a pipe would be waited for without end, and a device such as
    /dev/zero has no end.
    """
    try:
        mode = os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError, ValueError):  # no path holds a null character
        return "nothing there"
    except OSError as error:
        return f"an error: {error.strerror}"
    kinds = {stat.S_IFREG: None, stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe"}
    return kinds.get(stat.S_IFMT(mode), "a device or a socket")


def check_name(path: Path) -> None:
    """Raise a `FileError` if the path is not UTF-8, since records could not name it, or cannot be
    one at all."""
    name = os.fspath(path)
    if "\0" in name or name != name.encode(errors="replace").decode():
        raise FileError(f"expected a path in UTF-8, got {path}; rename the file or the folder")


def read_json(path: Path) -> dict[str, Any]:
    if (other := not_a_file(path)) is not None:
        raise FileError(f"expected a JSON file at {path}, got {other}; check the path")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        json.dumps(
            content, ensure_ascii=False
        ).encode()  # a lone surrogate could not be written again
    except OSError as error:
        raise FileError(
            f"expected a JSON file at {path}, got: {error.strerror or error}; check the path"
        ) from None
    except (ValueError, RecursionError) as error:
        raise FileError(f"expected JSON in {path}, got: {error}; make the file again") from None
    if not isinstance(content, dict):
        raise FileError(
            f"expected a JSON object in {path}, got {type(content).__name__}; make the file again"
        )
    return content


def tensor_bytes(tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> bytes:
    """The content of a `.safetensors` file. Tensors are copied, because the format refuses tensors
    that share memory."""
    plain = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    return safetensors.torch.save(plain, dict(metadata) if metadata else None)


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and metadata of a `.safetensors` file. The format contains no code, and the
    reader checks every offset."""
    return _read_safetensors(path, tensors=True)


def read_metadata(path: Path) -> dict[str, str]:
    """The metadata of a `.safetensors` file, without its tensors."""
    return _read_safetensors(path, tensors=False)[1]


def _read_safetensors(path: Path, *, tensors: bool) -> tuple[dict[str, Tensor], dict[str, str]]:
    if (other := not_a_file(path)) is not None:
        raise FileError(f"expected a .safetensors file at {path}, got {other}; check the path")
    check_name(path)
    try:
        with safetensors.safe_open(path, framework="pt") as stream:
            names = stream.keys() if tensors else ()
            return {name: stream.get_tensor(name) for name in names}, dict(stream.metadata() or {})
    except (safetensors.SafetensorError, OSError, ValueError, TypeError, RuntimeError) as error:
        raise FileError(
            f"expected a whole .safetensors file at {path}, got: {_one_line(error)}; copy or save "
            "it again"
        ) from None


def read_member(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> bytearray:
    """Read a member of an archive in pieces. If it unpacks to more than its declared size, no more
    than that size is read."""
    content = bytearray()
    with archive.open(entry) as stream:
        while piece := stream.read(2**20):
            content += piece
    if len(content) != entry.file_size:
        raise zipfile.BadZipFile(f"{entry.filename} ends early")
    return content


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
