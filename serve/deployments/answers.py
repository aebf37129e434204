"""Any task beside the papers': it answers a file by its module `answer`, as `retable predict` does."""

# No `from __future__ import annotations` in the modules of deployments; `app.py` says why.
import asyncio
import mimetypes
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from retable.platform.config import override, parse_set
from retable.platform.errors import UserError
from retable.platform.models import contract
from retable.platform.store.storage import Storage
from retable.serve.deployments.served import Served
from retable.serve.ingress.replies import Problem, Reply, returns_problems, wrong


class Answers(Served[contract.Exported]):
    """The models of one task, and what each makes of a file."""

    def __init__(self, storage: Storage, task: str, places: int, wait: float) -> None:
        super().__init__(storage, task, places, wait)
        self.answers = contract.answers(task)

    @returns_problems
    async def answer(self, sha256: str, name: str, settings: Sequence[str], body: bytes) -> Reply:
        """Answer a file.

        Args:
            sha256: digest of the model's file.
            name: of the file; its suffix says what it is. Empty: the task's only one.
            settings: options of the task, `field=value`.
            body: the file.
        """
        suffixes = sorted(self.answers.SUFFIXES)
        suffix = Path(name).suffix.lower() if name or len(suffixes) > 1 else suffixes[0]
        if suffix not in suffixes:
            raise wrong("file", repr(name), f"a name that ends in {', '.join(suffixes)}")

        async def answered() -> Reply:
            return await asyncio.to_thread(self._answer, await self.model(sha256), suffix, settings, body)

        return await self.line.run(answered)

    def _answer(self, model: contract.Exported, suffix: str, settings: Sequence[str], body: bytes) -> Reply:
        with TemporaryDirectory() as folder:
            source = Path(folder, f"request{suffix}")
            source.write_bytes(body)
            try:
                options = override(self.answers.Options(), parse_set(list(settings), "set"))
                data = self.answers.answering(model, options)(source)
            except UserError as error:
                raise Problem(422, str(error).replace(str(source), "the file")) from error
            target = Path(self.answers.target(source, options))
        media, _ = mimetypes.guess_type(target)
        named = ("Content-Disposition", f'inline; filename="answer{target.suffix}"')
        return Reply(data, media or "application/octet-stream", headers=(named,))
