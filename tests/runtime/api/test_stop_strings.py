import time

from hypothesis import given
from hypothesis import strategies as st

from raydix.runtime.api.stop_strings import StopStringFinder


def test_a_possible_beginning_is_held_back_and_released_when_it_fails():
    finder = StopStringFinder(["END"], keeps_match=False)
    assert [finder.push("abcE"), finder.push("N"), finder.push("x")] == ["abc", "", "ENx"]


def test_text_ends_before_the_match():
    finder = StopStringFinder(["END"], keeps_match=False)
    assert [finder.push("abcE"), finder.push("NDxyz")] == ["abc", ""]
    assert finder.matched == "END"


def test_text_ends_after_the_match_if_it_is_kept():
    finder = StopStringFinder(["END"], keeps_match=True)
    assert [finder.push("abcE"), finder.push("NDxyz")] == ["abc", "END"]


def test_the_match_that_completes_first_wins():
    finder = StopStringFinder(["abcd", "bc"], keeps_match=False)
    assert finder.push("xabcd") == "xa"
    assert finder.matched == "bc"


def test_of_matches_that_end_together_the_longest_wins():
    finder = StopStringFinder(["bc", "abc"], keeps_match=False)
    assert finder.push("xabc") == "x"
    assert finder.matched == "abc"


def test_a_match_inside_unchecked_text_does_not_count_later():
    finder = StopStringFinder(["ab"], keeps_match=False)
    assert finder.push_unchecked("xab") == "xab"
    assert finder.push("c") == "c"
    assert finder.matched is None


def test_a_match_that_ends_after_unchecked_text_counts():
    finder = StopStringFinder(["ab"], keeps_match=False)
    assert finder.push_unchecked("xa") == "x"
    assert finder.push("b") == ""
    assert finder.matched == "ab"


def test_a_token_costs_the_same_however_long_stop_strings_are():
    length = 20_000
    lasting = "a" * length + "b"
    finder = StopStringFinder([lasting, *("b" * length + str(i) for i in range(63))], False)
    assert finder.push("a" * length) == ""

    began_s = time.thread_time()
    for _ in range(100):
        assert finder.push("a") == "a"
    # A tenth of a millisecond each; searched anew by length it would be over 300 ms.
    assert time.thread_time() - began_s < 2


def test_flush_releases_what_is_held():
    finder = StopStringFinder(["END"], keeps_match=False)
    assert finder.push("abEN") + finder.flush() + finder.flush() == "abEN"


@given(
    st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3),
    st.lists(st.text("abc", max_size=5), max_size=8),
    st.booleans(),
)
def test_the_result_does_not_depend_on_how_the_text_is_cut(stop_strings, pieces, keeps_match):
    def run(parts):
        finder = StopStringFinder(stop_strings, keeps_match)
        text = ""
        for part in parts:
            text += finder.push(part)
            if finder.matched is not None:
                return text, finder.matched
        return text + finder.flush(), None

    whole = "".join(pieces)
    result = run(pieces)
    assert result == run(list(whole))
    if result[1] is None:
        assert result[0] == whole
        assert not any(each in whole for each in stop_strings)
