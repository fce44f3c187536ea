"""Which link of each client counts: the newest, whatever has been noticed of the former ones."""

from raydix.ids import ClientId


class NewestLinks:
    """Owns: the newest link of each client that is connected.

    A client has one link to an engine. When that is lost, it makes another one and asks again, by
    the same request ids, perhaps long before the engine notices the loss: what was asked over the
    former link is nobody's any more by then, and must not stand in its way. Other clients' requests
    do.
    """

    def __init__(self) -> None:
        self._newest: dict[str, tuple[int, ClientId]] = {}

    def open(self, client: str, number: int, link: ClientId) -> ClientId | None:
        """A client has opened its link of this number. Returns the link to be given up, if any.

        That is its former one, or this one itself, if it comes later than a newer one.
        """
        former_number, former = self._newest.get(client, (number, None))
        if number < former_number:
            return link
        self._newest[client] = (number, link)
        return former

    def close(self, client: str, link: ClientId) -> None:
        """A link of a client has closed; perhaps a newer one is there."""
        if client in self._newest and self._newest[client][1] == link:
            del self._newest[client]
