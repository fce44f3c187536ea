import pytest

from raydix.runtime.actors.links.frames import FrameReader, FrameTooLarge, frame


def test_frames_are_cut_wherever_the_stream_breaks() -> None:
    bodies = [b"", b"a", b"bc" * 300]
    stream = b"".join(frame(body) for body in bodies)
    reader = FrameReader(1000)
    taken = []

    for index in range(len(stream)):
        reader.feed(stream[index : index + 1])
        while (body := reader.take()) is not None:
            taken.append(body)

    assert taken == bodies


def test_an_announced_giant_is_refused() -> None:
    reader = FrameReader(10)
    reader.feed(frame(b"x" * 11)[:4])

    with pytest.raises(FrameTooLarge):
        reader.take()
