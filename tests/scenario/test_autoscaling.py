"""What an autoscaler cannot be asked is told by its field."""

import pytest
from pydantic import ValidationError

from capplan.scenario.autoscaling import Autoscaler, ScalingMetric

LENGTH = {"metric": "queue_length", "source": "external", "target": 4.0}


@pytest.mark.parametrize(
    ("metric", "told"),
    [
        ({"metric": "e2e_s"}, "metric: of pods one of queue_length"),
        ({"target_type": "Value"}, "target_type: of pods AverageValue, got Value"),
        ({"source": "resource"}, "metric: of resource a share in use"),
        ({"quantile": 0.9}, "quantile: of ttft_s, e2e_s, tpot_s, got it for queue_length"),
        (
            {"metric": "e2e_s", "source": "external", "quantile": 0.99995},
            "quantile: 10,000 attempts are remembered, and 20,000 would be needed",
        ),
        ({"window_s": 9.0}, "window_s: of ttft_s, e2e_s, tpot_s, got it for queue_length"),
    ],
)
def test_a_metric_is_of_its_source(metric, told):
    with pytest.raises(ValidationError, match=told):
        ScalingMetric(**({"metric": "queue_length", "target": 4.0} | metric))


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"min_replicas": 5}, "min_replicas <= max_replicas must hold, got 5 and 4"),
        ({"min_replicas": 0}, "min_replicas: at least 1 without event_driven"),
        ({"metrics": [LENGTH | {"activation": 2.0}]}, "metrics.activation: is of event_driven"),
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
