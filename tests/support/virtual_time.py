"""A clock for code that sleeps between attempts: a test neither waits nor depends on the machine's speed."""


class VirtualTime:
    """Replaces the module ``time`` in a module under test. Time passes only while the code sleeps."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        """The seconds slept so far."""
        return self.now

    time = monotonic

    def sleep(self, seconds: float) -> None:
        """Lets ``seconds`` pass without a wait."""
        self.now += seconds
