"""A bounded cache for threads: when several threads need the same value, one of them loads it."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Generic, TypeVar

Value = TypeVar("Value")


class SharedCache(Generic[Value]):
    """An LRU cache for threads, of at most ``limit``. No value is loaded twice at the same time.

    ``cost`` gives the size of a value in the unit of ``limit``. A failed load raises in every thread that
    waits for it. The next caller tries again.
    """

    def __init__(self, limit: int, cost: Callable[[Value], int]) -> None:
        self._limit, self._cost = limit, cost
        self._lock = threading.Lock()
        self._values: OrderedDict[Hashable, Future[Value]] = OrderedDict()
        self._used = 0
        self.loads = 0
        """How often ``load`` was called."""

    def get(self, key: Hashable, load: Callable[[], Value]) -> Value:
        """The value of ``key``. Calls ``load`` unless the value is cached or being loaded."""
        with self._lock:
            future = self._values.get(key)
            mine = future is None
            if future is None:
                future = self._values[key] = Future()
                self.loads += 1
            else:
                self._values.move_to_end(key)
        if mine:
            self._fill(key, future, load)
        return future.result()

    def _fill(self, key: Hashable, future: "Future[Value]", load: Callable[[], Value]) -> None:
        try:
            value = load()
        except BaseException as error:
            with self._lock:
                del self._values[key]
            future.set_exception(error)
            return
        future.set_result(value)
        with self._lock:
            self._used += self._cost(value)
            while self._used > self._limit and self._drop_oldest(keep=key):
                pass

    def _drop_oldest(self, keep: Hashable) -> bool:
        for key, future in self._values.items():
            if future.done() and key != keep:
                self._used -= self._cost(future.result())
                del self._values[key]
                return True
        return False
