"""The plugin's settings and faults as text: what is read back is what was meant, nonsense is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from latencylab.model.integrity import InputError
from latencylab.runtime.faults import FAULTS, Injected, format_faults, parse_faults
from latencylab.runtime.settings import SPAN_SINKS, Settings


def test_nothing_set_wants_nothing() -> None:
    settings = Settings.from_env({"PATH": "/bin", "LATENCYLAB_CLOCK": " "})
    assert settings == Settings()
    assert not settings.wanted
    assert settings.to_env() == {}


def test_all_of_them() -> None:
    settings = Settings.from_env(
        {
            "LATENCYLAB_DIR": "/x/y",
            "LATENCYLAB_SPANS": "profiler, nvtx",
            "LATENCYLAB_CLOCK": "1",
            "LATENCYLAB_STRICT": "1",
            "LATENCYLAB_FAULTS": "item; sleep:us=200,rank=1",
        }
    )
    assert settings == Settings(
        Path("/x/y"),
        frozenset({"nvtx", "profiler"}),
        True,
        True,
        (Injected("item", {"rank": -1}), Injected("sleep", {"us": 200, "rank": 1, "busy": 1})),
    )
    assert settings.to_env()["LATENCYLAB_SPANS"] == "nvtx,profiler"
    assert Settings.from_env(settings.to_env()) == settings


@pytest.mark.parametrize(
    ("env", "said"),
    [
        ({"LATENCYLAB_CLOCK": "yes"}, "LATENCYLAB_CLOCK: 'yes' is neither 0 nor 1"),
        ({"LATENCYLAB_SPANS": "nvtx,perfetto"}, "'perfetto' is none of nvtx, profiler"),
        ({"LATENCYLAB_FAULTS": "slow"}, "fault 'slow': not known"),
        ({"LATENCYLAB_FAULTS": "item;item"}, "fault item: given twice"),
        ({"LATENCYLAB_FAULTS": "gc"}, "fault gc: every= is missing"),
        ({"LATENCYLAB_FAULTS": "gc:every=0"}, "every must be at least 1"),
        ({"LATENCYLAB_FAULTS": "sleep:us=99999999999999999999"}, "us must be at most 1000000000"),
        ({"LATENCYLAB_FAULTS": "gc:every=many"}, "every='many' is no whole number"),
        ({"LATENCYLAB_FAULTS": "gc:often=3"}, "'often=3' is no parameter of it; it has: every"),
        ({"LATENCYLAB_FAULTS": "item:us"}, "it has: rank"),
        ({"LATENCYLAB_CLOCK": "1", "LATENCYLAB_DIR": ""}, "LATENCYLAB_DIR: not set"),
    ],
)
def test_nonsense_is_refused_in_one_line(env: dict[str, str], said: str) -> None:
    with pytest.raises(InputError, match=r"^[^\n]*$") as refused:
        Settings.from_env({"LATENCYLAB_DIR": "x", **env})
    assert said in str(refused.value)


def _values(name: str) -> st.SearchStrategy[Injected]:
    parameters = FAULTS[name].parameters
    numbers = {key: st.integers(parameter.least, 10**6) for key, parameter in parameters.items()}
    return st.fixed_dictionaries(numbers).map(lambda values: Injected(name, values))


FAULT_LISTS = st.lists(st.sampled_from(sorted(FAULTS)), unique=True).flatmap(
    lambda names: st.tuples(*map(_values, names))
)


@given(FAULT_LISTS)
def test_faults_survive_their_text(faults: tuple[Injected, ...]) -> None:
    assert parse_faults(format_faults(faults)) == faults


@given(FAULT_LISTS, st.sets(st.sampled_from(SPAN_SINKS)), st.booleans(), st.booleans())
def test_settings_survive_the_environment(
    faults: tuple[Injected, ...], spans: set[str], clock: bool, strict: bool
) -> None:
    settings = Settings(Path("/a b/c"), frozenset(spans), clock, strict, faults)
    assert Settings.from_env(settings.to_env()) == settings


def test_a_fault_of_one_rank() -> None:
    (fault,) = parse_faults("sleep:us=5,rank=2")
    assert [fault.on_rank(rank) for rank in range(4)] == [False, False, True, False]
    (everywhere,) = parse_faults("sleep:us=5")
    assert everywhere.on_rank(3)
