"""What an autoscaler cannot be asked is told by its field."""

import pytest
from pydantic import ValidationError

from capplan.scenario.autoscaling import Autoscaler, ScalingMetric

LENGTH = {"metric": "queue_length", "source": "external", "target": 4.0}


@pytest.mark.parametrize(
    ("metric", "told"),
    [
        ({"metric": "e2e_s"}, "metric: for source pods one of queue_length"),
        ({"target_type": "Value"}, "target_type: for source pods AverageValue, got Value"),
        ({"source": "resource"}, "metric: a …_fraction for source resource"),
        ({"quantile": 0.9}, "quantile: allowed for ttft_s, e2e_s, tpot_s, got metric queue_length"),
        (
            {"metric": "e2e_s", "source": "external", "quantile": 0.99995},
            "quantile: needs at most the 10,000 attempts that a window keeps, not 20,000",
        ),
        ({"window_s": 9.0}, "window_s: allowed for ttft_s, e2e_s, tpot_s, got metric queue_length"),
    ],
)
def test_a_metric_is_of_its_source(metric, told):
    with pytest.raises(ValidationError, match=told):
        ScalingMetric(**({"metric": "queue_length", "target": 4.0} | metric))


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"min_replicas": 5}, "min_replicas: at most max_replicas 4, got 5"),
        ({"min_replicas": 0}, "min_replicas: at least 1 without event_driven"),
        ({"metrics": [LENGTH | {"activation": 2.0}]}, "metrics.activation: needs event_driven"),
        (
            {"metrics": [{"metric": "in_flight", "target": 2.0}], "event_driven": {}},
            "event_driven: needs a metric of source external",
        ),
        ({"event_driven": {"idle_replicas": 0}, "min_replicas": 0}, "idle_replicas: below"),
    ],
)
def test_numbers_of_an_autoscaler_agree(fields, told):
    given = {"max_replicas": 4, "metrics": [LENGTH]} | fields
    with pytest.raises(ValidationError, match=told):
        Autoscaler.model_validate(given, strict=False)
