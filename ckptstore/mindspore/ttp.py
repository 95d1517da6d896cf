"""MindIO TTP: files that its handlers save are recorded before the process ends.

The controller calls a save handler on some ranks after a fault, then has one of them rename the directory, then
ends every process by `os._exit`: no callback runs, and nothing is flushed. So the handlers themselves are wrapped.
"""

from __future__ import annotations

import logging
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from mindspore.train import ModelCheckpoint

from ckptstore.core.model import Content, Kind
from ckptstore.core.naming import is_ttp_file, parse_name, parse_ttp_directory
from ckptstore.disk.files import FileFacts, facts, names_in, real_directory
from ckptstore.evidence.writers import ttp_names_before
from ckptstore.mindspore import compat
from ckptstore.mindspore.session import Watch
from ckptstore.outside import Path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ckptstore.mindspore.session import Session

log = logging.getLogger("ckptstore")


class TtpWatch(Watch):
    """Watches the callback whose save, rename and exit handlers MindIO calls after a fault, and records their results.

    Errors of MindSpore's own handlers pass through unchanged.
    """

    _session: Session

    def __init__(self, callback: Any) -> None:
        super().__init__(callback)
        self._module = compat.fault_tolerance_module(callback)

    def begin(self, session: Session) -> None:
        """Record where it saves, and have the controller call our handlers around MindSpore's."""
        self._session, callback = session, self.callback
        if not hasattr(callback, "has_init_replica"):  # MS_ENABLE_TFT asks for other features only: nothing is saved
            return
        root = getattr(callback, "ckpt_save_path", None)
        if root is not None:
            found = partial(ttp_names_before, root, rank=session.launch.rank)
            session.places.add(root, kind=Kind.TTP, prefix="", names_before=found)
        if session.progress.global_step and getattr(callback, "initial_step", 0):
            callback.initial_step = 0  # else it is added to a count that includes it
        callback.tft.tft_register_save_ckpt_handler(self.save, callback)
        callback.tft.tft_register_rename_handler(self.rename, callback)
        callback.tft.tft_register_exit_handler(self.exit, callback)

    def save(self, step: int, save_info: Any, args: Any, cb_ctx: Any) -> None:
        """Save this rank's state, and record the complete file before this returns to the controller."""
        before: dict[str, FileFacts] | None = None
        with self._surviving():
            before = dict(self._files(cb_ctx))
        compat.TTP_SAVE.of(self._module)(step, save_info, args, cb_ctx)
        with self._surviving():
            self._record_new(before, cb_ctx)
        self._flush()

    def rename(self, step: int, cb_ctx: Any) -> None:
        """Rename the directory, and record the new paths of all ranks' files in it."""
        before: set[str] = set()
        with self._surviving():
            before = self._unfinished(cb_ctx)
        compat.TTP_RENAME.of(self._module)(step, cb_ctx)
        with self._surviving():
            self._record_moved(before, cb_ctx)
        self._flush()

    def exit(self, ctx: Any) -> None:
        """Finish the records under way, then let the process end."""
        self._flush()
        compat.TTP_EXIT.of(self._module)(ctx)

    @contextmanager
    def _surviving(self) -> Iterator[None]:
        """Only log errors of ckptstore: they must not keep a state, of this rank or another, from being saved."""
        try:
            yield
        except Exception:
            log.exception("a TTP checkpoint could not be registered; the next start looks for it on disk")

    def _flush(self) -> None:
        with self._surviving():
            self._session.recorder.finish()

    def _record_new(self, before: dict[str, FileFacts] | None, cb_ctx: Any) -> None:
        if before is None:  # the files before the save are not known: new ones cannot be found
            return
        written = [(path, found) for path, found in self._files(cb_ctx) if before.get(path) != found]
        if not written:
            log.error("ckpt_save_fn wrote nothing where ckptstore looks: its file is not registered")
        for path, found in written:
            file = self._session.describe(
                path, kind=Kind.TTP, content=Content.FULL, global_step=int(cb_ctx.cur_step_num), written=found
            )
            self._session.recorder.submit(file, asynchronous=False)

    def _record_moved(self, before: set[str], cb_ctx: Any) -> None:
        root = cb_ctx.ckpt_save_path
        for name in before - self._unfinished(cb_ctx):
            old = f"{real_directory(root)}/{name}"
            new = old.removesuffix("_tmp")
            self._session.recorder.call(partial(self._session.launch.moved, old, new))

    def _unfinished(self, cb_ctx: Any) -> set[str]:
        root = getattr(cb_ctx, "ckpt_save_path", None)
        if root is None:
            return set()
        parsed = ((name, parse_ttp_directory(name)) for name in names_in(str(root)))
        return {name for name, directory in parsed if directory is not None and directory.unfinished}

    def _files(self, cb_ctx: Any) -> Iterator[tuple[str, FileFacts]]:
        """Files where the handler may put one: this rank's part of its tree; with `ckpt_save_fn` the usual one."""
        if getattr(cb_ctx, "save_cb", None):
            callbacks = self._session.params.list_callback
            periodic = [callback for callback in callbacks if isinstance(callback, ModelCheckpoint)]
            named = [compat.DIRECTORY.get(callback, None) for callback in periodic]
            directories: dict[str, Callable[[str], object]] = {
                real_directory(directory): parse_name for directory in named if isinstance(directory, str)
            }
        else:
            root = Path(real_directory(cb_ctx.ckpt_save_path))
            own = f"rank_{self._session.launch.rank}"
            directories = {str(root / name / own): is_ttp_file for name in self._unfinished(cb_ctx)}
        for directory, has_right_name in directories.items():
            for name in names_in(directory):
                path = str(Path(directory) / name)
                found = None
                with suppress(OSError):  # no file, or unreadable: it is not the one just saved
                    found = facts(path) if has_right_name(name) else None
                if found is not None:
                    yield path, found
