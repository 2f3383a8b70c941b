"""The requests of each replica, counted from the moment of the choice."""

from __future__ import annotations

from rase.cluster.places import Places


def test_a_choice_counts_at_once_and_once():
    places = Places()
    for request in "abc":
        places.take(request, "one")
    places.take("c", "two")  # where it was routed in the end
    places.take("a", "one")
    assert places.counts() == {"one": 2, "two": 1} and places.counts()["three"] == 0
    places.leave("a")
    places.leave("never seen")
    assert places.counts() == {"one": 1, "two": 1}


def test_a_request_that_is_given_up_leaves_its_place():
    places, given_up = Places(), []
    places.take("a", "one", lambda: bool(given_up))
    assert places.counts() == {"one": 1}
    given_up.append(True)
    assert places.counts() == {}
    places.take("a", "one")  # it was sent: now only its end counts
    assert places.counts() == {"one": 1}
