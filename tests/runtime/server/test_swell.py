from raydix.runtime.server.swell import Swell, resident_bytes


def looks(swell, *mebibytes):
    """At which of these looks the swell is over; 100 MiB are left each time."""
    over = []
    for number, each in enumerate(mebibytes):
        if swell.is_over(each << 20):
            over.append(number)
            swell.begin_anew(100 << 20)
    return over


def test_a_swell_is_over_once_memory_has_grown_much_and_grows_no_more():
    assert looks(Swell(90 << 20), 100, 200, 300, 300, 110, 120, 160, 180, 180) == [3, 8]


def test_little_growth_is_no_swell():
    assert looks(Swell(90 << 20), 140, 150, 150, 90, 153, 153) == []


def test_what_is_in_use_is_not_given_back_again():
    swell = Swell(90 << 20)
    assert looks(swell, 400, 400) == [1]
    swell.begin_anew(400 << 20)
    assert looks(swell, 400, 400, 430, 430) == []


def test_resident_bytes_are_those_of_this_process():
    before = resident_bytes()
    held = b"7" * (64 << 20)
    assert before + len(held) <= resident_bytes() + (8 << 20)
