"""The states of a request, and the moves between them."""
