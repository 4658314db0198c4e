"""`navia serve`: an HTTP service that predicts images and adapts to them in the background."""

import dataclasses
import functools
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from navia.cli import options, terminal
from navia.cli.options import option
from navia.errors import InputError, NaviaError

if TYPE_CHECKING:
    from navia.serve.service import Service

KEY_VARIABLE = "NAVIA_KEY"  # keys are no option: every user of a machine can read its command lines

# options in the panels of the help, named as their parameters
_network, _checkpoint, _batching, _limit = (
    functools.partial(option, "", panel) for panel in ("Network", "Checkpoints", "Batching", "Limits")
)


def serve(
    context: typer.Context,
    model: options.Model,
    checkpoint: options.Checkpoint = None,
    num_classes: options.NumClasses = None,
    labels: options.Labels = None,
    source: options.Source = None,
    method: options.Method = "navia",
    reduce: options.Reduce = "none",
    opt: options.Opt = None,
    adapt_every: options.AdaptEvery = "1",
    seed: options.Seed = 2020,
    host: Annotated[str, _network("Address to listen on; one beyond this machine needs a key.")] = "127.0.0.1",
    port: Annotated[int, _network("Port; 0: any free one.", min=0, max=65535)] = 8000,
    name: Annotated[list[str] | None, _network("Host name of a proxy in front of the service; repeatable.")] = None,
    key_file: Annotated[
        Path | None,
        _network(f"API keys, one per line: NAME:KEY, or KEY. Or one key in ${KEY_VARIABLE}."),
    ] = None,
    state: Annotated[Path | None, _checkpoint("Folder for checkpoints; a restart resumes from there.")] = None,
    every: Annotated[int, _checkpoint("Adaptation steps between checkpoints.", min=1)] = 20,
    every_seconds: Annotated[float, _checkpoint("Seconds from a step to its checkpoint, at most.", min=0.1)] = 60.0,
    batch_size: options.BatchSize = 16,
    batch_timeout: Annotated[float, _batching("Milliseconds to wait for a batch.", min=0)] = 5.0,
    adapt_batch: Annotated[int, _batching("Images of one adaptation step.", min=1)] = 32,
    adapt_wait: Annotated[float, _batching("Seconds after which a step is made with fewer (at least 8).")] = 30.0,
    adapt_threads: Annotated[int, _batching("CPU threads of the adaptation.", min=1)] = 1,
    adapt_share: Annotated[float, _batching("Least share of the time for adaptation.", min=0, max=1)] = 0.2,
    queue: Annotated[int, _limit("Images that may wait; more are refused with 503.", min=1)] = 256,
    max_body: Annotated[float, _limit("Largest request in MiB.", min=0.001)] = 32.0,
    max_pixels: Annotated[float, _limit("Largest image in millions of pixels.", min=0.001)] = 40.0,
    max_images: Annotated[int, _limit("Images in one request.", min=1)] = 64,
    max_connections: Annotated[int, _limit("Open connections; more are refused with 503.", min=1)] = 1024,
    rate: Annotated[float, _limit("Requests per second of one key; 0: no limit.", min=0)] = 0.0,
    burst: Annotated[int, _limit("Requests of one key at once, with --rate.", min=1)] = 20,
    wrong_keys: Annotated[int, _limit("Wrong keys per minute and address; 0: no limit.", min=0)] = 20,
    timeout: Annotated[float, _limit("Seconds to receive a body, and to predict.", min=0.1)] = 30.0,
    keep_images: Annotated[int, _limit("Images kept in memory for the dashboard; 0: none.", min=0)] = 12,
    workers: options.Workers = 0,
    crop_only: options.CropOnly = False,
    device: options.Device = "auto",
    precision: options.Precision = "float32",
    tf32: options.TF32 = False,
    deterministic: options.Deterministic = False,
    plugins: options.Plugins = None,
) -> None:
    """Predict images over HTTP, and adapt to them in the background.

        navia serve --model timm:deit_tiny_patch16_224 --source clean/ --reduce tome:8 --state state/

    Dashboard at /, OpenAPI at /openapi.json, Prometheus at /metrics. Every option can come from an environment variable, as
    NAVIA_SERVE_PORT for --port. Ctrl-C or SIGTERM: finishes the running requests, writes a checkpoint, and ends.
    """
    from navia.adaptation.statistics import open_source_statistics
    from navia.serve.settings import Batching, Limits, ServiceSettings, is_loopback, read_keys

    keys = read_keys(key_file, KEY_VARIABLE, os.environ.get(KEY_VARIABLE, "").strip())
    if not keys and not is_loopback(host):
        raise InputError(f"{host} can be reached from other machines: give --key-file or ${KEY_VARIABLE}")
    given = context.params | {
        "batch_timeout": batch_timeout / 1000, "queue_size": queue, "max_body_bytes": int(max_body * 2**20),
        "max_pixels": int(max_pixels * 1e6), "keys": keys, "names": tuple(name or ()), "decode_threads": workers,
        "checkpoint_every": every, "checkpoint_seconds": every_seconds,
    }  # fmt: skip

    def read(kind: Any, **more: Any) -> Any:
        return kind(**more, **{field.name: given[field.name] for field in dataclasses.fields(kind) if field.name in given})

    settings: ServiceSettings = read(ServiceSettings, batching=read(Batching), limits=read(Limits))
    try:
        from navia.serve.adaptation_worker import Checkpoints
        from navia.serve.app import make_app
        from navia.serve.service import Service
    except ImportError as missing:
        raise NaviaError(f"navia serve needs {missing.name}: pip install 'navia[serve]'") from missing
    if state is not None:  # refused before the model is loaded and measured
        Checkpoints(state).lock().close()
    logging.basicConfig(level="INFO", format="%(asctime)s %(name)s %(message)s")
    method_settings = terminal.method_options(method, opt)
    vit = terminal.load_model(
        model, checkpoint, crop_only, device, precision=precision, num_classes=num_classes, labels=labels
    )
    statistics = None if source is None else open_source_statistics(vit, source, reduce, method=method)
    service = Service(
        vit, method, reduce, statistics, settings=settings, state=state, seed=seed, adapt_every=adapt_every,
        **method_settings,
    )  # fmt: skip
    _run(service, make_app(service, is_loopback(host)), host, port)


def _run(service: "Service", app: Any, host: str, port: int) -> None:
    import prometheus_client
    import uvicorn

    class Server(uvicorn.Server):
        async def startup(self, sockets: Any = None) -> None:
            await super().startup(sockets)
            if self.started:
                address, bound = self.servers[0].sockets[0].getsockname()[:2]
                shown = f"[{address}]" if ":" in address else address
                print(f"navia serves on http://{shown}:{bound}/ (Ctrl-C ends it)", flush=True)

        def handle_exit(self, sig: int, frame: Any) -> None:
            service.stop_adapting()  # the checkpoint does not wait for requests; open dashboards end
            self.force_exit = self.should_exit  # a second signal ends at once
            self.should_exit = True

    prometheus_client.disable_created_metrics()
    limits = service.settings.limits
    config = uvicorn.Config(
        app, host=host, port=port, log_level="warning", server_header=False, limit_concurrency=limits.max_connections,
        access_log=False,  # requests are counted, not logged
        timeout_keep_alive=int(limits.timeout) + 1, timeout_graceful_shutdown=int(limits.timeout) + 5,
    )  # fmt: skip
    server = Server(config)
    try:
        service.start()
        server.run()
    finally:
        service.stop()
    if not server.started:
        raise InputError(f"could not start on {host}:{port}; the lines above say why")
