"""Requests, replies and the status of the HTTP API. OpenAPI is generated from these classes."""

import json
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from navia.serve.settings import TOP_K

if TYPE_CHECKING:
    from navia.serve.predictor import RequestOutput

Mode = Literal["adapting", "waiting", "shedding", "paused", "off"]
# None for NaN and infinity, which JSON does not have
Finite = Annotated[float | None, AfterValidator(lambda value: value if value is not None and math.isfinite(value) else None)]


class _Schema(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class PredictBody(_Schema):
    """Images as base64: an image file (JPEG, PNG, WebP, BMP, GIF), or a NumPy array as .npy."""

    images: Annotated[list[str], Field(min_length=1, description="Base64 of one file each.")]
    top: Annotated[int, Field(ge=1, le=1000, description="Number of classes to return for each image.")] = TOP_K


class ClassScore(_Schema):
    index: Annotated[int, Field(description="Class, counted from 0.")]
    label: str
    probability: float


class ImagePrediction(_Schema):
    top: list[ClassScore]
    entropy: Annotated[float, Field(description="Entropy of the class probabilities in nats; 0 is certain.")]
    step: Annotated[int, Field(description="Adaptation step of the state that predicted; 0 is the source model.")]


class PredictReply(_Schema):
    predictions: list[ImagePrediction]
    queue_ms: Annotated[float, Field(description="Time that the images waited for their batch.")]
    answer_ms: Annotated[float, Field(description="Time that the model took for the batch.")]


class ErrorReply(_Schema):
    """Every error has this form. It contains no path and no traceback."""

    error: str


def encode_reply(output: "RequestOutput", labels: Sequence[str], top: int) -> bytes:
    """Write a PredictReply as JSON, not by pydantic: it needs most of a second for 64 images times 1,000 classes."""
    values, classes = output.probabilities.topk(min(top, output.probabilities.shape[1]), dim=1)
    predictions = []
    for indices, shares, entropy in zip(classes.tolist(), values.tolist(), output.entropy.tolist(), strict=True):
        scores = [{"index": i, "label": labels[i], "probability": share} for i, share in zip(indices, shares, strict=True)]
        predictions.append(json.dumps({"top": scores, "entropy": entropy, "step": output.step}))  # lets other threads run
    times = f'"queue_ms":{1000 * output.queue_seconds},"answer_ms":{1000 * output.predict_seconds}'
    return f'{{"predictions":[{",".join(predictions)}],{times}}}'.encode()


class RequestStats(_Schema):
    """Since the start of the process."""

    requests: int
    images: int
    refused: Annotated[dict[str, int], Field(description="Requests that failed or were refused, by reason.")]
    images_per_second: Annotated[float, Field(description="Over the window, or since the start if that is shorter.")]
    window_images: Annotated[int, Field(description="Predicted within the window.")]
    p50_ms: Annotated[float | None, Field(description="From the arrival of a request to its reply, within the window.")]
    p95_ms: float | None
    p99_ms: float | None
    queue: Annotated[int, Field(description="Images that wait for their prediction.")]
    queue_limit: int


class AdaptationStatus(_Schema):
    """state: adapting (a step is running), waiting (for images), shedding (under load), paused, off."""

    state: Mode
    policy: Annotated[str, Field(description="Description of when the service adapts and when it does not.")]
    step: Annotated[int, Field(description="Step of the state that predicts now.")]
    images_adapted: int
    images_skipped: Annotated[int, Field(description="Predicted, but not due for the adaptation (--adapt-every).")]
    update_share: Annotated[float, Field(description="Share of the collected batches that led to an update.")]
    images_shed: Annotated[int, Field(description="Predicted, but left out of the adaptation under load.")]
    images_waiting: Annotated[int, Field(description="Predicted, and waiting for the next step.")]
    guard_events: int
    entropy: Annotated[Finite, Field(description="Mean over the batch of the last step, in nats.")]
    discrepancy: Annotated[Finite, Field(description="Distance of the CLS statistics from the source.")]
    loss: Finite
    drift: Annotated[float, Field(description="Change of the tuned parameters, relative to their size.")]
    step_seconds: Annotated[float | None, Field(description="Duration of the last step.")]


class CheckpointStatus(_Schema):
    every: Annotated[int, Field(description="Steps between two checkpoints.")]
    every_seconds: Annotated[float, Field(description="From a step to its checkpoint, at most.")]
    step: Annotated[int | None, Field(description="Step of the newest checkpoint; None: none written yet.")]
    seconds_ago: float | None
    failures: Annotated[int, Field(description="Failed writes since the start of the process.")]


class ReadyReply(_Schema):
    """Reply of /readyz when the service is ready."""

    status: Literal["ready"] = "ready"
    checkpoint_seconds_ago: Annotated[float | None, Field(description="Age of the newest checkpoint; None: there is none.")]
    checkpoint_failures: Annotated[int, Field(description="Failed writes of checkpoints since the start.")]


class Event(_Schema):
    """A guard event, reset, rollback, pause, checkpoint or error that an operator should see."""

    time: Annotated[float, Field(description="Seconds since 1970.")]
    kind: Literal["start", "guard", "pause", "resume", "reset", "rollback", "delta", "checkpoint", "error"]
    text: str


class ClassCount(_Schema):
    label: str
    count: int


class TimeSeries(_Schema):
    """One point per second, oldest first, at most 300; all lists have the same length. None: no value in that second."""

    time: list[float]
    images_per_second: list[float]
    p50_ms: list[float | None]
    p95_ms: list[float | None]
    entropy: Annotated[list[float | None], Field(description="Mean of the images predicted in that second.")]
    discrepancy: list[Finite]
    drift: list[float]
    step: list[int]
    shed: Annotated[list[int], Field(description="Images left out of the adaptation in that second.")]


class Status(_Schema):
    model: str
    method: str
    reduce: str
    version: str
    started: float
    uptime: float
    window: Annotated[int, Field(description="Seconds that rates, percentiles, classes and series cover.")]
    ready: bool
    served: RequestStats
    adaptation: AdaptationStatus
    checkpoint: CheckpointStatus | None
    classes: Annotated[list[ClassCount], Field(description="The 20 most frequent predicted classes of the window.")]
    events: Annotated[list[Event], Field(description="The last 50, newest first.")]
    series: TimeSeries


class RecentImage(_Schema):
    """Thumbnail and prediction of a recent image, for the dashboard."""

    number: Annotated[int, Field(description="Counts up: a higher one is newer.")]
    time: float
    picture: Annotated[str, Field(description="JPEG as a data URI, at most 96 px a side.")]
    label: str
    probability: float
    entropy: float
    step: int


class RecentReply(_Schema):
    images: list[RecentImage]


class ControlReply(_Schema):
    """Reply to reset, pause, resume, rollback and a loaded delta."""

    step: int
    state: Mode
    text: str
