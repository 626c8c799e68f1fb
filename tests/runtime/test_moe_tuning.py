"""Tuning finds the best block sizes within its time, and keeps SGLang's own where nothing is gained."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest

from latencylab.model.integrity import InputError
from latencylab.runtime.moe_tuning import (
    SIZES,
    Config,
    Pair,
    SglangBench,
    Shape,
    Tuned,
    candidates,
    guard_sizes,
    report,
    tune,
    write_configs,
)

SHAPE = Shape.of_rank()
DEFAULT: Config = {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 32, "BLOCK_SIZE_K": 64, "GROUP_SIZE_M": 1}


class Model:
    """A GPU whose times follow from the block sizes; `best` gives the least for each projection."""

    def __init__(
        self, best_up: Config, best_down: Config, *, seconds: float = 0.0, refuses: bool = False
    ) -> None:
        self.best = (best_up, best_down)
        self.seconds, self.refuses = seconds, refuses
        self.now = 0.0
        self.asked: list[tuple[int, Pair]] = []

    def default(self, size: int) -> Config:
        return dict(DEFAULT)

    def time_us(self, size: int, pair: Pair) -> float | None:
        self.now += self.seconds
        self.asked.append((size, pair))
        if self.refuses and pair != (DEFAULT, DEFAULT):
            return None
        return 10 * size + sum(self._part(config, best) for config, best in zip(pair, self.best, strict=True))

    @staticmethod
    def _part(config: Config, best: Config) -> float:
        wanted = {key: config.get(key) for key in best}
        return 5.0 if wanted == best else 8.0 if config == DEFAULT else 20.0

    def clock(self) -> float:
        return self.now


UP = {"BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 128, "num_warps": 4, "num_stages": 4}
DOWN = {"BLOCK_SIZE_N": 128, "BLOCK_SIZE_K": 64, "num_warps": 8, "num_stages": 3}


def test_shape_counts_the_shared_expert():
    assert Shape(513, 192, 2560, 9) == SHAPE


def test_both_projections_are_found():
    model = Model(UP, DOWN)
    tuned = tune(model, SHAPE, (1, 6), clock=model.clock)
    assert [each.size for each in tuned] == [1, 6]
    for each in tuned:
        up, down = each.kept
        assert UP.items() <= up.items()
        assert DOWN.items() <= down.items()
        assert up["BLOCK_SIZE_M"] == down["BLOCK_SIZE_M"] == 16
        assert (each.before_us - each.after_us, each.improved) == (6.0, True)


def test_rows_are_shared_in_everything_that_is_timed():
    model = Model(UP, DOWN)
    tune(model, SHAPE, (1,), clock=model.clock)
    assert all(up["BLOCK_SIZE_M"] == down["BLOCK_SIZE_M"] for _, (up, down) in model.asked)


def test_default_is_timed_first_and_kept_where_nothing_is_better():
    model = Model(DEFAULT, DEFAULT)
    (each,) = tune(model, SHAPE, (6,), clock=model.clock)
    assert model.asked[0] == (6, (DEFAULT, DEFAULT))
    assert not each.improved
    assert each.kept == (DEFAULT, DEFAULT)


def test_time_is_kept_and_shared():
    model = Model(UP, DOWN, seconds=1.0)
    (each,) = tune(model, SHAPE, (1,), budget_s=40, clock=model.clock)
    settling = 10
    assert model.now <= 40 + 2 + settling
    searched = model.asked[:-settling]
    downs = [pair for _, pair in searched if pair[0] == DEFAULT and pair[1] != DEFAULT]
    assert 15 <= len(downs) <= 21
    assert each.tried < len(candidates(SHAPE.width)) + len(candidates(SHAPE.hidden))


def test_order_follows_from_the_seed():
    def asked(seed: int) -> list[tuple[int, Pair]]:
        model = Model(UP, DOWN, seconds=1.0)
        tune(model, SHAPE, (1,), budget_s=20, seed=seed, clock=model.clock)
        return model.asked

    assert asked(0) == asked(0)
    assert asked(0) != asked(1)


def test_candidates_that_do_not_run_are_passed_over():
    model = Model(UP, DOWN, refuses=True)
    (each,) = tune(model, SHAPE, (1,), clock=model.clock)
    assert each.kept == (DEFAULT, DEFAULT)


def test_nothing_is_tuned_where_the_default_does_not_run():
    class Broken(Model):
        def time_us(self, size: int, pair: Pair) -> float | None:
            return None

    with pytest.raises(InputError, match="do not run with 1 tokens"):
        tune(Broken(UP, DOWN), SHAPE, (1,))


@pytest.mark.parametrize("depth", [192, 2560])
def test_candidates_fit(depth):
    found = candidates(depth)
    assert 20 < len(found) < 200
    keys = {tuple(sorted(each.items())) for each in found}
    assert len(keys) == len(found)
    for each in found:
        assert each["BLOCK_SIZE_M"] >= 16
        tile = each["BLOCK_SIZE_K"] * (each["BLOCK_SIZE_M"] + each["BLOCK_SIZE_N"]) * 2
        assert tile * each["num_stages"] <= 232448
        assert each["num_stages"] <= max(2, -(-depth // each["BLOCK_SIZE_K"]) + 1)


def _tuned(size: int, after: float) -> Tuned:
    return Tuned(size, DEFAULT, ({**DEFAULT, **UP}, {**DEFAULT, **DOWN}), 100.0, after, 7)


NAMES = ("E=513,N=192,device_name=NVIDIA_H200.json", "E=513,N=192,device_name=NVIDIA_H200_down.json")


def _nearest(table: dict[str, Config], tokens: int) -> Config:
    """As SGLang looks up."""
    keys = [int(key) for key in table]
    return table[str(min(keys, key=lambda key: abs(key - tokens)))]


def test_files_are_where_sglang_looks(tmp_path, sglang_wheel):
    guards = {size: {"guard": size} for size in guard_sizes(513)}
    up, down = write_configs(tmp_path, NAMES, "3.7.1", [_tuned(1, 50.0), _tuned(9, 99.9)], guards)
    assert up == tmp_path / "configs" / "triton_3_7_1" / NAMES[0]
    assert down == tmp_path / "configs" / "triton_3_7_1" / NAMES[1]
    ups, downs = (json.loads(path.read_text()) for path in (up, down))
    assert ups["1"] == {**DEFAULT, **UP}
    assert downs["1"] == {**DEFAULT, **DOWN}
    assert ups["9"] == downs["9"] == DEFAULT  # no gain worth having
    assert ups.keys() == downs.keys()
    assert list(map(int, ups)) == sorted(map(int, ups))
    source = sglang_wheel("sglang/srt/layers/moe/moe_runner/triton_utils/fused_moe_triton_config.py")
    assert "f\"triton_{triton_version.replace('.', '_')}\"" in source
    assert "key=lambda x: abs(x - M)" in source
    # `tuned-moe` asks for the same folder.
    assert list(tmp_path.glob("configs/triton_*/E=*.json"))


def test_prefill_keeps_sglangs_choice(tmp_path):
    guards = {size: {"guard": size} for size in guard_sizes(513)}
    up, _ = write_configs(tmp_path, NAMES, "3.7.1", [_tuned(size, 50.0) for size in SIZES], guards)
    table = json.loads(up.read_text())
    for tokens in SIZES:
        assert "guard" not in _nearest(table, tokens)
    for tokens in (64, 512, 513, 600, 2048, 8192, 16384):
        guard = _nearest(table, tokens)["guard"]
        assert (guard > 513) == (tokens > 513)  # SGLang's choice changes where tokens outnumber experts


def test_wheel_has_no_configuration_of_its_own(sglang_wheel):
    folder = "sglang/srt/layers/moe/moe_runner/triton_utils/configs/"
    ours = [name for name in sglang_wheel.names if re.search(r"E=51[23],N=192,device_name=NVIDIA_H200", name)]
    assert ours == []
    assert any(name.startswith(f"{folder}triton_") for name in sglang_wheel.names)
    assert not [name for name in sglang_wheel.names if "tuning_fused_moe" in name]


def test_report_shows_both_times():
    lines: Iterator[str] = report([_tuned(1, 50.0), _tuned(9, 99.9)])
    text = "\n".join(lines)
    assert "100.0       50.0   50.0%" in text
    assert "SGLang's own is kept" in text


def test_without_sglang_it_is_one_line():
    with pytest.raises(InputError, match="SGLang is needed to tune"), SglangBench(SHAPE):
        pytest.fail("there is no SGLang")
