"""What goes over the wire: requests, replies, and the status that the dashboard shows. OpenAPI is made from these."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from navia.serve.settings import TOP

Mode = Literal["adapting", "waiting", "shedding", "paused", "off"]


class _Message(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


# ---- predict


class PredictBody(_Message):
    """Images as base64: a picture (JPEG, PNG, WebP, BMP, GIF), or a NumPy array as .npy."""

    images: Annotated[list[str], Field(min_length=1, description="Base64 of one file each.")]
    top: Annotated[int, Field(ge=1, le=1000, description="Classes to name for each image.")] = TOP


class Guess(_Message):
    index: Annotated[int, Field(description="Class, counted from 0.")]
    label: str
    probability: float


class Prediction(_Message):
    top: list[Guess]
    entropy: Annotated[float, Field(description="Of all class probabilities, in nats: 0 is certain.")]
    step: Annotated[int, Field(description="The adaptation step whose state answered; 0 is the model as it came.")]


class PredictReply(_Message):
    predictions: list[Prediction]
    queue_ms: Annotated[float, Field(description="How long the images waited for their batch.")]
    answer_ms: Annotated[float, Field(description="How long the model took for the batch.")]


class Problem(_Message):
    """Every error has this form: what is wrong, never a path or a trace."""

    error: str


# ---- status


class Served(_Message):
    """Since the start of the process."""

    requests: int
    images: int
    refused: Annotated[dict[str, int], Field(description="Requests without an answer, by the reason.")]
    images_per_second: Annotated[float, Field(description="Over the window, or since the start where that is shorter.")]
    window_images: Annotated[int, Field(description="Answered within the window.")]
    p50_ms: Annotated[float | None, Field(description="From the arrival of a request to its reply, within the window.")]
    p95_ms: float | None
    p99_ms: float | None
    queue: Annotated[int, Field(description="Images that wait for their answer.")]
    queue_limit: int


class Adaptation(_Message):
    """state: adapting (a step is under way), waiting (for images), shedding (answers need the machine), paused, off."""

    state: Mode
    policy: Annotated[str, Field(description="In words, when the service adapts and when it does not.")]
    step: Annotated[int, Field(description="The step whose state answers now.")]
    images_adapted: int
    images_shed: Annotated[int, Field(description="Answered, but left out of the adaptation for want of time.")]
    images_waiting: Annotated[int, Field(description="Answered, and waiting for their step.")]
    guard_events: int
    entropy: Annotated[float | None, Field(description="Mean over the batch of the last step, in nats.")]
    discrepancy: Annotated[float | None, Field(description="Distance of the CLS statistics to the source's.")]
    loss: float | None
    drift: Annotated[float, Field(description="How far the tuned parameters moved, relative to their size.")]
    step_seconds: Annotated[float | None, Field(description="Of the last step.")]


class Checkpoint(_Message):
    every: Annotated[int, Field(description="Steps between two.")]
    every_seconds: Annotated[float, Field(description="From a step to its checkpoint, at most.")]
    step: Annotated[int | None, Field(description="That the last one holds; None: none written yet.")]
    seconds_ago: float | None
    failures: Annotated[int, Field(description="Writes that failed since the start of the process.")]


class Ready(_Message):
    """What /readyz says of a service that is ready."""

    status: Literal["ready"] = "ready"
    checkpoint_seconds_ago: Annotated[float | None, Field(description="Age of the newest checkpoint; None: there is none.")]
    checkpoint_failures: Annotated[int, Field(description="Writes of checkpoints that failed since the start.")]


class Event(_Message):
    """Something a person should know: guard verdicts, resets, rollbacks, pauses, checkpoints set aside."""

    time: Annotated[float, Field(description="Seconds since 1970.")]
    kind: Literal["start", "guard", "pause", "resume", "reset", "rollback", "delta", "checkpoint", "error"]
    text: str


class ClassCount(_Message):
    label: str
    count: int


class Series(_Message):
    """One point a second, oldest first, at most 300; all lists have the same length. None: nothing happened then."""

    time: list[float]
    images_per_second: list[float]
    p50_ms: list[float | None]
    p95_ms: list[float | None]
    entropy: Annotated[list[float | None], Field(description="Mean of the images answered in that second.")]
    discrepancy: list[float | None]
    drift: list[float]
    step: list[int]
    shed: Annotated[list[int], Field(description="Images left out of the adaptation in that second.")]


class Status(_Message):
    model: str
    method: str
    reduce: str
    version: str
    started: float
    uptime: float
    window: Annotated[int, Field(description="Seconds that rates, percentiles, classes and series are about.")]
    ready: bool
    served: Served
    adaptation: Adaptation
    checkpoint: Checkpoint | None
    classes: Annotated[
        list[ClassCount], Field(description="What the images of the window were taken for, the 20 most frequent first.")
    ]
    events: Annotated[list[Event], Field(description="The last 50, newest first.")]
    series: Series


class Recent(_Message):
    """A picture that was answered lately, small, for the dashboard."""

    number: Annotated[int, Field(description="Counts up: a higher one is newer.")]
    time: float
    picture: Annotated[str, Field(description="JPEG as a data URI, at most 96 px a side.")]
    label: str
    probability: float
    entropy: float
    step: int


class RecentReply(_Message):
    images: list[Recent]


class Done(_Message):
    """After reset, pause, resume, rollback or a loaded delta."""

    step: int
    state: Mode
    text: str
