"""Options of `navia serve`: every one can come from an environment variable, and reaches the setting that it names."""

from typing import Any

import pytest
import typer.main

from navia.cli.main import app
from navia.serve.settings import Batching, Limits, ServiceSettings
from tests.test_cli import invoke

COMMAND = typer.main.get_command(app).commands["serve"]  # type: ignore[attr-defined]
OPTIONS = {parameter.name: parameter.opts[0] for parameter in COMMAND.params if parameter.name not in ("help", "plugins")}
SAMPLES = {
    "model": "embedded", "method": "tent", "reduce": "tome:8", "device": "cpu", "precision": "bfloat16", "crop_only": "true",
    "num_classes": "3", "opt": "lr=0.1 momentum=0.5", "name": "a.example b.example", "tf32": "true", "deterministic": "true",
}  # fmt: skip


def values(*arguments: str) -> dict[str, Any]:
    return COMMAND.make_context("serve", list(arguments), auto_envvar_prefix="NAVIA_SERVE").params


@pytest.mark.parametrize("name", OPTIONS)
def test_every_option_can_come_from_a_variable(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same value as from the command line, and another one than by default."""
    for setting in ("use_tf32", "use_deterministic_algorithms"):
        monkeypatch.setattr(f"navia.models.device.{setting}", lambda: None)  # they would last for the other tests
    model = () if name == "model" else ("--model", "embedded")
    by_default = values("--model", "embedded")[name]
    text = SAMPLES.get(name, "1" if isinstance(by_default, float) else "3" if isinstance(by_default, int) else "some/path")
    option = OPTIONS[name]
    words = [option] if text == "true" else [word for value in text.split() for word in (option, value)]
    given = values(*model, *words)[name]
    monkeypatch.setenv(f"NAVIA_SERVE_{option.lstrip('-').replace('-', '_').upper()}", text)
    assert values(*model)[name] == given
    assert given != by_default or name == "model"


def settings_of(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> tuple[ServiceSettings, dict[str, Any]]:
    """What the command would start a service with."""
    from navia.serve import service

    seen: dict[str, Any] = {}

    class Started(Exception):  # noqa: N818
        pass

    def start(*given: Any, **more: Any) -> None:
        seen.update(more)
        raise Started

    monkeypatch.setattr(service, "Service", start)
    result = invoke("serve", "--model", "embedded", "--method", "tent", *arguments)
    assert isinstance(result.exception, Started), result.output
    return seen["settings"], seen


def test_without_options_the_settings_are_the_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    assert settings_of(monkeypatch)[0] == ServiceSettings()


def test_options_reach_their_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    given = (
        "-b 3 --batch-timeout 7 --adapt-batch 4 --adapt-wait 9 --adapt-threads 2 --adapt-share 0.5 --queue 11 --max-body 0.5"
        " --max-pixels 0.25 --max-images 5 --max-connections 6 --rate 2 --burst 8 --wrong-keys 10 --timeout 12"
        " --keep-images 13 --every 14 --every-seconds 15 --workers 3 --name a.example --seed 5 --opt lr=0.5"
    )
    settings, options = settings_of(monkeypatch, *given.split())
    assert settings.batching == Batching(3, 0.007, 4, 9.0, 8, 2, 0.5)
    assert settings.limits == Limits(
        max_body_bytes=2**19, max_images=5, max_pixels=250_000, queue_size=11, timeout=12.0, rate=2.0, burst=8,
        wrong_keys=10, max_connections=6,
    )  # fmt: skip
    assert (settings.keep_images, settings.checkpoint_every, settings.checkpoint_seconds) == (13, 14, 15.0)
    assert (settings.decode_threads, settings.names) == (3, ("a.example",))
    assert (options["seed"], options["lr"]) == (5, 0.5)


@pytest.mark.parametrize(("old", "value", "new"), [("--batch", "3", "batch_size"), ("--wait", "3", "batch_timeout")])
def test_names_of_the_previous_release_still_work(monkeypatch: pytest.MonkeyPatch, old: str, value: str, new: str) -> None:
    batching = settings_of(monkeypatch, old, value)[0].batching
    assert getattr(batching, new) == {"batch_size": 3, "batch_timeout": 0.003}[new]
    assert settings_of(monkeypatch, "--option", "lr=0.5")[1]["lr"] == 0.5
    assert settings_of(monkeypatch, "-o", "lr=0.5")[1]["lr"] == 0.5


def test_a_precision_is_that_of_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    from navia.models import load as loading

    seen, load = [], loading.load

    def noted(*given: Any, **more: Any) -> Any:
        seen.append(more["precision"])
        return load(*given, **more)

    monkeypatch.setattr(loading, "load", noted)
    settings_of(monkeypatch, "--precision", "bfloat16")
    assert seen == ["bfloat16"]
