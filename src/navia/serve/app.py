"""The service on HTTP: routes, and how they turn what happens behind them into replies."""

import asyncio
import base64
import binascii
import math
import time
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Annotated, Any, TypeVar

import pydantic
from fastapi import FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse, StreamingResponse
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from navia import __version__
from navia.adaptation.delta import DeltaError
from navia.errors import InputError, NaviaError
from navia.serve.dashboard import FILES
from navia.serve.metrics import metrics
from navia.serve.middleware import Access, Refusal
from navia.serve.predictor import BusyError
from navia.serve.schemas import Done, PredictBody, PredictReply, Problem, Ready, RecentReply, Status
from navia.serve.service import Service
from navia.serve.settings import TOP, Limits
from navia.serve.status import recent, status

_BYTES = "application/octet-stream"  # a delta as safetensors, or an array
_ARRAYS = (_BYTES, "application/x-npy")  # for a picture as a file, too
_FILE = {"type": "string", "format": "binary"}
_EVENT = {"type": "object", "properties": {"event": {"type": "string"}, "data": {"type": "string"}}}

Result = TypeVar("Result")


def _problems(*codes: int) -> dict[int | str, dict[str, Any]]:
    return {code: {"model": Problem} for code in (401, 403, 408, 413, 429, *codes)}


_PREDICT_BODY = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {"schema": PredictBody.model_json_schema()},
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "properties": {
                        "images": {"type": "array", "items": _FILE, "minItems": 1},
                        "top": {"type": "integer", "minimum": 1, "maximum": 1000, "default": TOP},
                    },
                    "required": ["images"],
                }
            },
            **{kind: {"schema": _FILE} for kind in ("image/*", *_ARRAYS)},
        },
    }
}


def make_app(service: Service, loopback: bool = True) -> FastAPI:
    """The application of a service that has been started; stopping it is left to the caller."""
    app = FastAPI(title="navia", version=__version__, docs_url=None, redoc_url=None)
    app.add_middleware(Access, settings=service.settings, loopback=loopback, refused=service.watch.refuse)
    _add_predict(app, service)
    _add_control(app, service)
    _add_watching(app, service)
    _add_page(app)
    _add_problems(app, service)
    return app


# ---- routes


def _add_predict(app: FastAPI, service: Service) -> None:
    problems = _problems(400, 415, 422, 503, 504)

    @app.post("/v1/predict", response_model=PredictReply, responses=problems, openapi_extra=_PREDICT_BODY)
    async def predict(request: Request) -> Response:
        """Classify images: JSON with base64, a multipart form of files, or one picture or array as the body."""
        arrived = time.monotonic()
        files, top = await _files(request, service)
        images = await _within(service.decode(files), service)
        answer = await _within(service.answers.submit(images), service)
        content = await asyncio.to_thread(service.reply, answer, top)  # other requests are not held up
        service.watch.replied(time.monotonic() - arrived)
        return Response(content, media_type="application/json")


def _add_control(app: FastAPI, service: Service) -> None:
    @app.post("/v1/pause", responses=_problems())
    async def pause() -> Done:
        """Answer on, but stop adapting."""
        return service.pause(True)

    @app.post("/v1/resume", responses=_problems())
    async def resume() -> Done:
        """Adapt again."""
        return service.pause(False)

    @app.post("/v1/reset", responses=_problems(503, 504))
    async def reset() -> Done:
        """Back to the model as it came."""
        return service.done(await _within(service.reset(), service))

    @app.post("/v1/rollback", responses=_problems(503, 504))
    async def rollback() -> Done:
        """Back to the state that was remembered last, some steps ago."""
        return service.done(await _within(service.rollback(), service))

    @app.get("/v1/delta", responses=_problems(503, 504) | {200: {"content": {_BYTES: {"schema": _FILE}}}})
    async def delta() -> Response:
        """What adaptation moved, as safetensors: for `adapter.load`, or for another replica."""
        content = await _within(service.delta(), service)
        named = {"content-disposition": 'attachment; filename="delta.safetensors"'}
        return Response(content, media_type=_BYTES, headers=named)

    @app.put(
        "/v1/delta",
        responses=_problems(422, 503, 504),
        openapi_extra={"requestBody": {"required": True, "content": {_BYTES: {"schema": _FILE}}}},
    )
    async def put_delta(request: Request) -> Done:
        """Go on from a delta of the same model, method and reducer."""
        return service.done(await _within(service.load_delta(await request.body()), service))


def _add_watching(app: FastAPI, service: Service) -> None:
    listeners, told = 0, (-math.inf, "")  # when the last status was made for a stream, and its text

    class EventStream(StreamingResponse):
        """Takes its place among the dashboards before anything is sent, and gives it back however it ends."""

        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            nonlocal listeners
            if listeners >= service.settings.limits.streams:
                raise Refusal(503, "streams", "too many dashboards are open")
            listeners += 1
            try:
                await super().__call__(scope, receive, send)
            finally:
                listeners -= 1

    @app.get("/v1/status", responses=_problems())
    async def get_status() -> Status:
        """Everything about the service at this moment."""
        return status(service)

    @app.get("/v1/recent", responses=_problems(422))
    async def get_recent(after: Annotated[int, Query(ge=0, le=2**53)] = 0) -> RecentReply:
        """The last pictures and what they were taken for."""
        return RecentReply(images=await asyncio.to_thread(recent, service, after))

    @app.get("/v1/events", responses=_problems(503) | {200: {"content": {"text/event-stream": {"schema": _EVENT}}}})
    async def events(once: bool = False) -> StreamingResponse:
        """The status once a second, as server-sent events (once: a single one)."""
        return EventStream(stream(once), media_type="text/event-stream")

    async def stream(once: bool) -> AsyncIterator[str]:
        while service.ready:
            yield f"event: status\ndata: {status_text()}\n\n"
            if once:
                return
            await asyncio.sleep(1 - time.monotonic() % 1)  # all at the same moment, so that one status does for all

    def status_text() -> str:
        nonlocal told
        now = time.monotonic()
        if now - told[0] > 0.2:
            told = now, status(service).model_dump_json()
        return told[1]

    @app.get("/metrics", responses=_problems() | {200: {"content": {"text/plain": {"schema": {"type": "string"}}}}})
    async def get_metrics() -> Response:
        """For Prometheus."""
        return Response(metrics(service), media_type="text/plain; version=0.0.4")

    @app.get("/healthz", responses={403: {"model": Problem}, 503: {"model": Problem}})
    async def healthz() -> dict[str, str]:
        """Whether the process works at all: restart it otherwise."""
        if service.ready and not service.alive:
            raise HTTPException(503, "a thread of the service ended")
        return {"status": "ok"}

    @app.get("/readyz", responses={403: {"model": Problem}, 503: {"model": Problem}})
    async def readyz() -> Ready:
        """Whether requests may be sent here, and how old the newest checkpoint is."""
        if not (service.ready and service.alive):
            raise HTTPException(503, "not ready")
        written = service.checkpoints
        return Ready(
            checkpoint_seconds_ago=written.age if written else None, checkpoint_failures=written.failures if written else 0
        )


def _add_page(app: FastAPI) -> None:
    for path, (file, kind) in FILES.items():
        app.add_route(path, _file(file, kind), methods=["GET"], include_in_schema=False)


def _file(file: Path, kind: str) -> Any:
    async def get(_: Request) -> FileResponse:
        return FileResponse(file, media_type=kind)

    return get


def _add_problems(app: FastAPI, service: Service) -> None:
    """One form for every error, and a counter for each kind."""

    def problem(code: int, reason: str, text: str, headers: Any = None) -> JSONResponse:
        service.watch.refuse(reason)
        return JSONResponse({"error": text}, code, headers=headers)

    @app.exception_handler(InputError)
    @app.exception_handler(DeltaError)
    async def bad_input(_: Request, error: NaviaError) -> JSONResponse:
        return problem(422, "image" if isinstance(error, InputError) else "delta", str(error))

    @app.exception_handler(BusyError)
    async def busy(_: Request, error: BusyError) -> JSONResponse:
        return problem(503, "busy", str(error), {"retry-after": "1"})

    @app.exception_handler(NaviaError)
    async def other(_: Request, error: NaviaError) -> JSONResponse:
        return problem(503, "other", str(error))

    @app.exception_handler(TimeoutError)
    async def late(_: Request, error: TimeoutError) -> JSONResponse:
        return problem(504, "timeout", f"no answer within {service.settings.limits.seconds:g} s")

    @app.exception_handler(Refusal)
    async def refused(_: Request, error: Refusal) -> JSONResponse:
        return problem(error.status, error.reason, error.text, error.headers)

    @app.exception_handler(ClientDisconnect)
    async def gone(_: Request, error: ClientDisconnect) -> JSONResponse:
        return problem(400, "gone", "the connection ended before the body did")

    @app.exception_handler(HTTPException)
    async def http(_: Request, error: HTTPException) -> JSONResponse:
        return problem(error.status_code, "http", str(error.detail), error.headers)

    @app.exception_handler(Exception)
    async def unexpected(_: Request, error: Exception) -> JSONResponse:
        return problem(500, "error", "an error inside the service; its log says more")

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        return problem(422, "request", _said(error.errors()))


# ---- what routes are written with


async def _within(future: "Future[Result]", service: Service) -> Result:
    """The result, or TimeoutError: what has not begun by then never does, what has goes on without a listener."""
    try:
        return await asyncio.wait_for(asyncio.wrap_future(future), service.settings.limits.seconds)
    finally:
        future.cancel()


async def _files(request: Request, service: Service) -> tuple[list[bytes], int]:
    """The files of a request, and how many classes it wants."""
    limits = service.settings.limits
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "application/json":
        files, top = await asyncio.to_thread(_json_files, await request.body())
    elif kind == "multipart/form-data":
        files, top = await _form(request, limits)
    elif kind.startswith("image/") or kind in _ARRAYS:
        files, top = [await request.body()], TOP
    else:
        raise Refusal(415, "type", f"send application/json, multipart/form-data, image/*, {' or '.join(_ARRAYS)}")
    if not files:
        raise Refusal(422, "request", "no image in the request")
    if len(files) > limits.images:
        raise Refusal(422, "request", f"more than {limits.images} images in one request")
    return files, top


def _json_files(content: bytes) -> tuple[list[bytes], int]:
    try:
        body = PredictBody.model_validate_json(content)
    except pydantic.ValidationError as error:
        raise Refusal(422, "request", _said(error.errors())) from error
    return [_base64(text, i) for i, text in enumerate(body.images)], body.top


def _said(errors: Sequence[Any]) -> str:
    """The first of pydantic's errors, as a line."""
    return "; ".join(f"{'.'.join(map(str, e['loc'])) or 'body'}: {e['msg']}" for e in errors[:3])


def _base64(text: str, position: int) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise Refusal(422, "request", f"images.{position}: no base64") from error


async def _form(request: Request, limits: Limits) -> tuple[list[bytes], int]:
    most = {"max_files": limits.images + 1, "max_fields": 16, "max_part_size": 1000}  # the latter of fields, not of files
    parser = MultiPartParser(request.headers, request.stream(), **most)
    parser.spool_max_size = limits.body_bytes + 1  # above that files go to disk: none does
    try:
        form = await parser.parse()
    except MultiPartException as error:
        raise Refusal(400, "request", f"no readable form: {error.message}") from error
    files = [await value.read() for _, value in form.multi_items() if isinstance(value, UploadFile)]
    await form.close()
    top = form.get("top", str(TOP))
    if not isinstance(top, str) or not top.isdecimal() or not 1 <= int(top) <= 1000:
        raise Refusal(422, "request", "top: a number from 1 to 1000 is needed")
    return files, int(top)
