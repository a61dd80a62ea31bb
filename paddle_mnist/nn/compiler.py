"""Compiles functions with numba, and keeps the machine code in a folder for the next process.

numba's own cache does not serve here: it misses functions that are closed over compiled ones, as
those of `kernels` are, and loads a damaged file as if it were whole. This one names a file
after everything the code depends on, and checks its SHA-256 before it is loaded. A file that is
damaged is compiled again; a folder that cannot be written, or that others may write (the code in it
would run as this user), is not used.

Importing this module imports numba: see `paddle_mnist.nn.covered.why_not_compiled`.
"""

import contextlib
import functools
import hashlib
import json
import logging
import os
import pickle
import stat
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Optional, Protocol, TypeVar

import llvmlite
import numba
import numpy as np
from numba.core import caching, codegen, compiler, config, serialize
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import cpu_target
from numba.core.runtime import rtsys

from paddle_mnist.errors import OutputError
from paddle_mnist.system.files import cache_folder, write_atomically
from paddle_mnist.system.lock import locked
from paddle_mnist.system.regular_files import read_bytes

log = logging.getLogger("paddle_mnist")

OPTIONS = {
    "nogil": True,  # threads compute at once
    "error_model": "numpy",  # no exceptions for divisions
    "boundscheck": False,
    "_nrt": False,  # no counts of references, which need arrays that may be the same
    "fastmath": {"contract"},  # a * b + c in one instruction; nothing that changes the order
    "no_cfunc_wrapper": True,  # no second entry, for C, which takes a tenth of the time to compile
}


Function = TypeVar("Function", bound=Callable[..., Any])


class Loop(Protocol):
    """A function of numba's, which is compiled for the types of its arguments."""

    _cache: Any
    overloads: dict[Any, Any]

    def __call__(self, *arguments: Any) -> Any: ...

    def compile(self, types: tuple[Any, ...]) -> Any: ...

    def disable_compile(self) -> None: ...


class _NoOverlap(compiler.Compiler):
    """Declares a function's arrays not to overlap, without which few of its loops are vectorized.

    Otherwise LLVM compares their addresses before each inner loop, which costs as much as the loop.
    """

    def define_pipelines(self) -> Any:
        self.state.flags.noalias = True
        return super().define_pipelines()


class _PartOfCallers(_NoOverlap):
    """Leaves a function as LLVM's instructions, to be optimized and translated with its callers.

    numba would do both with the function by itself, too, which takes as long again.
    """

    def define_pipelines(self) -> Any:
        state = self.state
        state.flags.no_compile = True
        state.library = _Unoptimized(state.targetctx.codegen(), state.func_id.func_qualname)
        return super().define_pipelines()

    def compile_extra(self, func: Any) -> Any:
        key = list[Any]().append  # callers find the function by an object of its own, a builtin one
        part = super().compile_extra(func)._replace(entry_point=key)
        part.target_context.insert_user_function(key, part.fndesc, [part.library])
        return part


class _Unoptimized(codegen.JITCodeLibrary):
    """The instructions of functions that are not to become machine code here."""

    def add_ir_module(self, ir_module: Any) -> None:
        for function in ir_module.functions:
            if not function.is_declaration:
                function.attributes.add("noinline")  # fewer loops would be vectorized
        super().add_ir_module(ir_module)

    def _optimize_final_module(self) -> None:
        pass

    def _finalize_final_module(self) -> None:
        self._finalized = True


def compiled(function: Callable[..., Any]) -> Loop:
    """Decorate a function that compiled ones call; its arrays must not overlap."""
    return _loop(function, pipeline_class=_PartOfCallers, no_cpython_wrapper=True)


def entry(function: Callable[..., Any]) -> Loop:
    """Decorate a function that Python calls, or others by its address; as `compiled` else."""
    return _loop(function, pipeline_class=_NoOverlap)


def _loop(function: Callable[..., Any], **options: Any) -> Loop:
    loop: Loop = numba.njit(unique(function), **OPTIONS, **options)
    return loop


def inlined(function: Callable[..., Any]) -> Loop:
    """Decorate a function to become part of its callers, which takes less time to compile."""
    loop: Loop = numba.njit(unique(function), inline="always", _nrt=False)
    return loop


def unique(function: Function) -> Function:
    """Make a function's name unique by a hash of the constants it is closed over.

    Of two functions of one name the linker keeps one, and names are otherwise unique only within
    the process that compiles them, not among the files that a process loads.
    """
    contents = [cell.cell_contents for cell in function.__closure__ or ()]
    functions = [getattr(value, "py_func", value) for value in contents]
    names = [value.__qualname__ if callable(value) else repr(value) for value in functions]
    digest = hashlib.sha256(json.dumps([function.__qualname__, *names]).encode()).hexdigest()
    function.__qualname__ += f"_{digest[:16]}"
    return function


def compile_function(function: Loop, arguments: Sequence[Any], title: str, key: str) -> None:
    """Compile a function for arguments of these types, or load its machine code.

    function: decorated with `compiled`; it refuses arguments of other types from then on.
    title: what it computes, for the log.
    key: all that its code depends on, except the types, the versions and the processor.
    """
    types = tuple(numba.typeof(argument) for argument in arguments)
    path = machine_code_path(arguments, title, key)
    with contextlib.ExitStack() as stack:
        if path is None:
            log.info("compiling the %s for this processor", title)
        else:
            function._cache = _File(path)
            if not path.exists():  # of several processes one compiles, and the others load
                stack.enter_context(_locked(path, title))
                if not path.exists():
                    log.info(
                        "compiling the %s for this processor, once; kept in %s", title, path.parent
                    )
        # The linear layer's loop is so short that LLVM unrolls it; numba leaves off the pass that
        # vectorizes what is unrolled. Under the lock, as the setting is that of all threads.
        stack.enter_context(global_compiler_lock)
        config.reload_config()  # which would undo the setting once NUMBA_* variables have changed
        stack.callback(setattr, config, "SLP_VECTORIZE", config.SLP_VECTORIZE)
        config.SLP_VECTORIZE = 1
        function.compile(types)
    function.disable_compile()


def load_numba() -> None:
    """Load all that numba can compile, as its first compilation would."""
    cpu_target.typing_context.refresh()
    cpu_target.target_context.refresh()


def address_of(function: Loop) -> int:
    """Return the address of a function's machine code, with which others can call it."""
    (code,) = function.overloads.values()
    address: int = code.library.get_pointer_to_function(code.fndesc.llvm_func_name)
    return address


def machine_code_path(arguments: Sequence[Any], title: str, key: str) -> Optional[Path]:
    """Return the path of a function's machine code, which need not exist yet.

    Returns None if the folder for it cannot be used.
    """
    # Without links, which could be changed after the rights of the folders were checked.
    folder = Path(os.path.realpath(cache_folder() / "compiled"))
    if not _is_usable(folder):
        return None
    names = [title, key, *(str(numba.typeof(argument)) for argument in arguments), sys.version]
    names += [f"numba {numba.__version__}, llvmlite {llvmlite.__version__}, {np.__version__}"]
    names += map(str, _target())
    return folder / f"{hashlib.sha256(json.dumps(names).encode()).hexdigest()[:40]}.bin"


def processor() -> tuple[str, set[str]]:
    """Return LLVM's name for the processor, such as "znver5", and what it has, as "+avx512f"."""
    _, name, features = _target()
    return name, set(features.split(","))


def _target() -> tuple[str, str, str]:
    """Return LLVM's names of the platform, the processor and its features."""
    names: tuple[str, str, str] = cpu_target.target_context.codegen().magic_tuple()
    return names


@functools.cache
def _is_usable(folder: Path) -> bool:
    """Return whether machine code can be kept in a folder; say why, if it cannot."""
    remedy = "so the convolution is compiled at each start; PADDLE_MNIST_CACHE names another folder"
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        unsafe = [path for path in folder.parents if _others_may_write(path, stat.S_ISVTX)]
        unsafe += [folder] if _others_may_write(folder) else []
        if not os.access(folder, os.W_OK):
            raise PermissionError(13, "Permission denied")
    except OSError as error:
        log.warning("%s cannot be written (%s), %s", folder, error.strerror, remedy)
        return False
    if unsafe:
        log.warning("%s can be written by other users, %s; or: chmod go-w", unsafe[0], remedy)
    return not unsafe


def _others_may_write(folder: Path, sticky: int = 0) -> bool:
    """Return whether other users could replace what is in a folder, by its owner and its rights.

    A group of the same number as the user has no other members, by convention.

    sticky: the bit by which a folder, such as /tmp, lets nobody replace what others have in it.
    """
    if not hasattr(os, "getuid"):  # Windows
        return False
    status = folder.stat()
    by_others = stat.S_IWOTH if status.st_gid == os.getuid() else stat.S_IWOTH | stat.S_IWGRP
    is_writable = status.st_mode & by_others and not status.st_mode & sticky
    return bool(is_writable) or status.st_uid not in (0, os.getuid())


@contextlib.contextmanager
def _locked(path: Path, title: str) -> Iterator[None]:
    lock = path.with_suffix(".lock")
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(locked(lock, wait=False))
        except BlockingIOError:
            log.info("the %s is being compiled for this processor, once; waiting for it", title)
            stack.enter_context(locked(lock))
        yield


class _File(caching.NullCache):
    """The machine code of one function: SHA-256 of the rest, and numba's own pickle of it."""

    def __init__(self, path: Path):
        self.path = path

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        try:
            contents = read_bytes(self.path)
        except FileNotFoundError:
            return None
        except OSError as error:
            log.warning("%s: %s; compiling again", self.path, error.strerror)
            return None
        digest, code = contents[:32], contents[32:]
        if hashlib.sha256(code).digest() != digest:
            log.warning("%s is damaged; compiling again", self.path)
            return None
        # Instead of all that numba can compile (`target_context.refresh()`), which takes longer to
        # load than this code: the functions that it calls to take arrays from Python.
        rtsys.initialize(target_context)
        return compiler.CompileResult._rebuild(target_context, *pickle.loads(code))

    def save_overload(self, sig: Any, data: Any) -> None:
        code = serialize.dumps(data._reduce())
        try:
            write_atomically(self.path, hashlib.sha256(code).digest() + code)
        except OutputError as error:
            log.warning("%s; the next start compiles again", error)
