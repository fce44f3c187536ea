"""The tokenizers of the models that a handle's engines have served, each read once."""

import asyncio

from raydix.runtime.actors.bootstrap.engine_handle import EngineHandle
from raydix.runtime.api.tokenizer import Tokenizer, load_tokenizer, load_tokenizer_files


class KnownTokenizers:
    """Owns: a tokenizer for each version of a model; None where a checkpoint has none."""

    def __init__(self, *, is_near: bool) -> None:
        """`is_near`: whether an engine's paths mean the same here as on its own host."""
        self._is_near = is_near
        self._added: dict[str, Tokenizer | None] = {}
        """The tokenizers of engines that this process has started, by the paths of their models."""
        self._by_version: dict[tuple[str, str, str | None], Tokenizer | None] = {}
        """The others, by path, fingerprint and digest: others may have come to the same path."""

    def add(self, path: str, tokenizer: Tokenizer | None) -> None:
        """Know the tokenizer of this model from now on."""
        self._added[path] = tokenizer

    async def of(self, handle: EngineHandle) -> Tokenizer | None:
        """The tokenizer of the model that an engine serves, read now if it is not known."""
        path = handle.model_path
        if path in self._added:
            return self._added[path]
        version = (path, handle.facts.fingerprint, handle.facts.tokenizer)
        if version not in self._by_version:
            self._by_version[version] = await self._load(handle)
        return self._by_version[version]

    async def _load(self, handle: EngineHandle) -> Tokenizer | None:
        if self._is_near:
            return await asyncio.to_thread(load_tokenizer, handle.model_path)
        # The path means something on the engine's host; here it may hold another model.
        files = await handle.call("tokenizer_files")
        return await asyncio.to_thread(load_tokenizer_files, files)
