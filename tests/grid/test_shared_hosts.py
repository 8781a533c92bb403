"""Classes on one host, each in the mix and alone."""

import pytest

from capplan.grid import host_sharing
from capplan.grid.shared_hosts import shared
from capplan.scenario.files import load_scenario, with_values
from capplan.simulation import simulate


@pytest.fixture(scope="module")
def base():
    return load_scenario("mixed-modality", values={"requests": 2500, "warmup_s": 0.0})


def test_classes_that_share_an_accelerator_slow_each_other_down(base):
    sharing = host_sharing(simulate(base, seed=1))
    frame = sharing.table().set_index("request_class")
    assert set(frame["host"]) == {"search-1", "media-1"}
    assert "chat" not in frame.index
    speech = frame.loc["speech"]
    assert speech["in_mix_e2e_p99_s"] > 1.2 * speech["alone_e2e_p99_s"]
    assert (frame["in_mix_e2e_p99_s"] >= frame["alone_e2e_p99_s"] - 1e-9).all()


def test_with_machines_of_their_own_nothing_is_shared(base):
    apart = {f"pools.{name}.hosts": [] for name in ("embedding", "vector", "speech", "image")}
    own = with_values(base, {**apart, "hosts": []})
    assert shared(own) == {}
    sharing = host_sharing(simulate(own, seed=1))
    assert sharing.table().empty
    assert sharing.summary()


def test_a_host_fast_enough_for_all_costs_no_class_anything(base):
    fast = {f"hosts.{host.name}.compute_units": 1e6 for host in base.hosts}
    frame = host_sharing(simulate(with_values(base, fast), seed=1)).table()
    assert not frame.empty
    assert frame["in_mix_e2e_p99_s"].tolist() == pytest.approx(frame["alone_e2e_p99_s"].tolist())
