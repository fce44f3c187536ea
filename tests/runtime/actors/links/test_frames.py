import pytest

from raydix.runtime.actors.links.frames import FrameReader, FrameTooLarge, frame


def test_frames_are_cut_wherever_the_stream_breaks() -> None:
    bodies = [b"", b"a", b"bc" * 300]
    stream = b"".join(frame(body) for body in bodies)
    reader = FrameReader(1000)
    taken = []

    for index in range(len(stream)):
        reader.feed(stream[index : index + 1])
        while reader.has_body:
            body = reader.take()
            assert body is not None
            taken.append(body)
        assert reader.take() is None

    assert taken == bodies


def test_an_announced_giant_is_refused() -> None:
    reader = FrameReader(10)
    reader.feed(frame(b"x" * 11)[:3])
    assert not reader.has_body
    reader.feed(frame(b"x" * 11)[3:4])

    assert reader.has_body, "to take one tells"
    with pytest.raises(FrameTooLarge):
        reader.take()
