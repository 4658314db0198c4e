"""The state of a service in the words of the API."""

import time

from navia import __version__
from navia.report.formatting import finite
from navia.serve.decoding import thumbnail
from navia.serve.schemas import Adaptation, Checkpoint, Recent, Served, Status
from navia.serve.service import Service
from navia.serve.stats import WINDOW


def status(service: Service) -> Status:
    watch = service.watch
    return Status(
        model=service.vit.name,
        method=service.method,
        reduce=service.reduce,
        version=__version__,
        started=watch.started,
        uptime=time.time() - watch.started,
        window=WINDOW,
        ready=service.ready,
        served=_served(service),
        adaptation=_adaptation(service),
        checkpoint=_checkpoint(service),
        classes=watch.classes(service.names),
        events=watch.events(),
        series=watch.series(),
    )


def recent(service: Service, after: int) -> list[Recent]:
    """Pictures that were answered after that with number `after`, newest first."""
    return [
        Recent(
            number=shown.number,
            time=shown.time,
            picture=thumbnail(shown.image, service.vit.preprocessing),
            label=service.names[shown.best],
            probability=shown.probability,
            entropy=shown.entropy,
            step=shown.step,
        )
        for shown in service.watch.shown(after)
    ]


def policy(service: Service) -> str:
    pace = service.settings.pace
    if service.learner.off:
        return f"{service.method} does not adapt."
    return (
        f"A step for every {pace.adapt_batch} answered images, or for at least {pace.enough} after {pace.adapt_wait:g} s. "
        f"It rests while an answer is under way, and none begins while {pace.batch} or more images wait for theirs, but "
        f"adaptation gets at least {pace.share:.0%} of the time. Of the images answered meanwhile the last "
        f"{2 * pace.adapt_batch} are kept for it, older ones are shed."
    )


def _served(service: Service) -> Served:
    watch = service.watch
    p50, p95, p99 = watch.percentiles()
    return Served(
        requests=watch.requests,
        images=watch.images,
        refused=dict(watch.refused),
        images_per_second=watch.images_per_second(),
        window_images=watch.window_images(),
        p50_ms=p50,
        p95_ms=p95,
        p99_ms=p99,
        queue=service.answers.waiting,
        queue_limit=service.settings.limits.queue,
    )


def _adaptation(service: Service) -> Adaptation:
    learner, last = service.learner, service.learner.last
    return Adaptation(
        state=learner.mode,
        policy=policy(service),
        step=service.answers.step,
        images_adapted=learner.counters["images_adapted"],
        images_shed=learner.counters["images_shed"],
        images_waiting=learner.waiting,
        guard_events=learner.counters["guard_events"],
        entropy=finite(last.entropy if last else None),  # JSON has no NaN
        discrepancy=finite(last.discrepancy if last else None),
        loss=finite(last.loss if last else None),
        drift=finite(learner.drift) or 0.0,
        step_seconds=last.seconds_answer + last.seconds_update if last else None,
    )


def _checkpoint(service: Service) -> Checkpoint | None:
    settings, written = service.settings, service.checkpoints
    if written is None:
        return None
    return Checkpoint(
        every=settings.checkpoint_every,
        every_seconds=settings.checkpoint_seconds,
        step=written.step,
        seconds_ago=written.age,
        failures=written.failures,
    )
