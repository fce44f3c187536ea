"""L3 in a bucket of S3, or of a service that speaks its protocol, through obstore."""

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from datetime import timedelta
from typing import Any

from raydix.errors import ConfigError
from raydix.ids import UserId
from raydix.runtime.config.l3 import S3L3Section
from raydix.runtime.messages.host import ObjectStatus
from raydix.runtime.messages.retention import Retention
from raydix.runtime.storage.backend import ObjectInfo, ObjectName, ObjectRef
from raydix.runtime.storage.backend_counts import BackendCounts
from raydix.runtime.storage.batches import compare_length
from raydix.runtime.storage.last_error import LastError
from raydix.runtime.storage.namespace import Namespace

logger = logging.getLogger(__name__)

_MAX_CONCURRENCY = 16
"""The most requests of one batch under way at once."""
_LIST_CHUNK = 1000
"""The names per request of a listing, and the most that one bulk deletion takes."""


class S3Backend:
    """Owns: a client of one bucket, and the event loop and thread that its requests run on.

    Objects are `<prefix>/<namespace, 16 hex>/<group>/<key, first 2 hex>/<key>`. The bucket's
    lifecycle rules bound them. Bytes are copied once on the way: a request that is given up may end
    late, and must not reach a page. A service that cannot be reached fails operations, not `open`.
    """

    def __init__(self, section: S3L3Section, clock: Callable[[], float] = time.monotonic) -> None:
        """Credentials come from the `AWS_` environment. Raises ConfigError without obstore."""
        try:
            import obstore
            from obstore.store import S3Store
        except ImportError as error:
            raise ConfigError(
                f"cache.l3.backend s3 needs obstore ({error}): pip install raydix[s3]"
            ) from error

        self._api: Any = obstore
        self._section = section
        self._clock = clock
        self._counts = BackendCounts(f"S3 bucket {section.bucket} at {section.endpoint or 'AWS'}")
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._folder = ""
        self._store: Any = self._make_store(S3Store)

    def _make_store(self, store_class: Any) -> Any:
        section = self._section
        timeout = timedelta(seconds=section.timeout_s)

        options: dict[str, Any] = {} if section.region is None else {"region": section.region}
        if section.endpoint is not None:
            options |= {"endpoint": section.endpoint, "virtual_hosted_style_request": False}
        is_http = section.endpoint is not None and section.endpoint.startswith("http://")

        try:
            return store_class(
                section.bucket,
                client_options={
                    "allow_http": is_http,
                    "connect_timeout": timeout,
                    "timeout": timeout,
                },
                retry_config={"max_retries": 2, "retry_timeout": timeout},
                **options,
            )
        except (ValueError, self._api.exceptions.BaseError) as error:
            raise ConfigError(f"cache.l3 describes no usable bucket: {_brief(error)}") from error

    def open(self, arena: memoryview, namespace: Namespace) -> None:
        """Try the bucket. Raises ConfigError if it does not exist or is not ours to use."""
        self._folder = "/".join(filter(None, (self._section.prefix.strip("/"), namespace.hex)))
        errors = self._api.exceptions

        try:
            next(iter(self._api.list(self._store, prefix=self._folder, chunk_size=1)), None)
        except (
            FileNotFoundError,
            errors.PermissionDeniedError,
            errors.UnauthenticatedError,
        ) as error:
            raise ConfigError(
                f"cache.l3.bucket {self._section.bucket} cannot be used: {_brief(error)}"
            ) from error
        except errors.BaseError as error:
            if "404 Not Found" in str(error):  # of the bucket; for want of a type of its own
                raise ConfigError(
                    f"cache.l3.bucket {self._section.bucket} cannot be used: no such bucket"
                ) from error
            logger.warning("the service of cache.l3 does not answer: %s", _brief(error))

        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="storage-s3", daemon=True
        )
        self._thread.start()

    def path(self, name: ObjectName) -> str:
        """The object's key in the bucket."""
        key = name.key.hex()
        return f"{self._folder}/{name.group}/{key[:2]}/{key}"

    def batch_exists(self, names: Sequence[ObjectName]) -> list[ObjectStatus]:
        """Ask by one HEAD per name; a service that does not answer is no MISSING."""
        answers = self._run([self._head(name) for name in names], self._deadline_s())
        return [self._status(answer) for answer in answers]

    def batch_get_into(self, refs: Sequence[ObjectRef], deadline_s: float) -> list[ObjectStatus]:
        """Fetch objects side by side, then copy them into their pages."""
        answers = self._run([self._get(ref) for ref in refs], deadline_s)
        statuses = []
        for ref, answer in zip(refs, answers, strict=True):
            status = self._status(answer)
            if status is ObjectStatus.OK and not isinstance(answer, ObjectStatus):
                ref.fill(memoryview(answer))  # type: ignore[arg-type]
                self._counts.add("objects_read")
            statuses.append(status)
        return statuses

    def batch_put_from(self, refs: Sequence[ObjectRef], deadline_s: float) -> list[ObjectStatus]:
        """Copy pages and store them side by side, unless their names exist."""
        answers = self._run([self._put(ref) for ref in refs], deadline_s)
        statuses = [self._status(answer) for answer in answers]
        self._counts.add("objects_written", sum(isinstance(answer, dict) for answer in answers))
        return statuses

    def delete(self, names: Sequence[ObjectName]) -> list[ObjectStatus]:
        """Delete what exists."""
        # S3 does not say whether a deleted object existed.
        statuses = self.batch_exists(names)
        there = [
            self.path(name)
            for name, status in zip(names, statuses, strict=True)
            if status is ObjectStatus.OK
        ]
        if there:
            [answer] = self._run([self._delete(there)], self._deadline_s())
            failure = self._status(answer)
            if failure is not ObjectStatus.OK:
                return [failure if status is ObjectStatus.OK else status for status in statuses]
        return statuses

    def clear(self) -> ObjectStatus:
        """List and delete, a thousand objects at a time."""
        try:
            for chunk in self._api.list(self._store, prefix=self._folder, chunk_size=_LIST_CHUNK):
                self._api.delete(self._store, [meta["path"] for meta in chunk])
        except (OSError, self._api.exceptions.BaseError) as error:
            return self._status(error)
        return ObjectStatus.OK

    def query(self, names: Sequence[ObjectName]) -> list[ObjectInfo | None]:
        """Tell sizes and times of writing."""
        answers = self._run([self._head(name) for name in names], self._deadline_s())
        return [
            ObjectInfo(answer["size"], answer["last_modified"].timestamp())
            if isinstance(answer, dict)
            else None
            for answer in answers
        ]

    def retain(
        self, names: Sequence[ObjectName], user: UserId, retention: Retention | None
    ) -> None:
        """The bucket's rules choose what goes, and know no hints."""

    def stats(self) -> dict[str, int]:
        """Counters; asks the service nothing."""
        return self._counts.figures()

    def last_error(self) -> LastError | None:
        """The error with which the store last failed, as `StorageBackend.last_error` says."""
        return self._counts.last_error

    def tidy(self) -> bool:
        """The bucket's rules make room."""
        return False

    def close(self) -> None:
        """Stop the event loop; nothing runs on it between calls."""
        if self._loop is not None and self._thread is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()
            self._loop = self._thread = None

    async def _head(self, name: ObjectName) -> object:
        return await self._api.head_async(self._store, self.path(name))

    async def _get(self, ref: ObjectRef) -> object:
        result = await self._api.get_async(self._store, self.path(ref.name))
        size_bytes = result.meta["size"]
        status = compare_length(size_bytes, len(ref.page))
        if status is not ObjectStatus.OK:
            return status
        body = await result.bytes_async()
        # A body may end early without an error.
        return body if len(body) == size_bytes else ObjectStatus.TOO_SHORT

    async def _put(self, ref: ObjectRef) -> object:
        data = bytes(ref.page)
        return await self._api.put_async(
            self._store, self.path(ref.name), data, mode="create", use_multipart=False
        )

    async def _delete(self, paths: list[str]) -> object:
        return await self._api.delete_async(self._store, paths)

    def _deadline_s(self) -> float:
        return self._clock() + self._section.timeout_s

    def _run(self, requests: list[Coroutine[Any, Any, object]], deadline_s: float) -> list[object]:
        """Run requests side by side; returns the result of each, its exception, or TIMED_OUT."""
        if not requests:
            return []
        assert self._loop is not None, "the backend is not open"
        return asyncio.run_coroutine_threadsafe(
            self._gather(requests, deadline_s), self._loop
        ).result()

    async def _gather(
        self, requests: Sequence[Awaitable[object]], deadline_s: float
    ) -> list[object]:
        turns = asyncio.Semaphore(_MAX_CONCURRENCY)

        async def take_turn(request: Awaitable[object]) -> object:
            async with turns:
                return await request

        tasks = [asyncio.ensure_future(take_turn(request)) for request in requests]
        _, late = await asyncio.wait(tasks, timeout=max(0.0, min(deadline_s - self._clock(), 1e6)))
        for task in late:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        return [
            ObjectStatus.TIMED_OUT if isinstance(result, asyncio.CancelledError) else result
            for result in results
        ]

    def _status(self, answer: object) -> ObjectStatus:
        # Anything that is neither a status nor an error is what a request has brought.
        match answer:
            case ObjectStatus():
                if answer is ObjectStatus.TIMED_OUT:
                    return self._counts.timeout("a request was not answered before its deadline")
                return answer
            case FileNotFoundError():
                return ObjectStatus.MISSING
            case self._api.exceptions.AlreadyExistsError():
                return ObjectStatus.OK
            case Exception():
                return self._counts.io_error(_brief(answer))
        return ObjectStatus.OK


def _brief(error: Exception) -> str:
    """The first line: obstore adds a dump of its structures."""
    return str(error).strip().split("\n")[0]
