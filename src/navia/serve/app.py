"""Routes of the HTTP API, and the replies to errors."""

import asyncio
import base64
import binascii
import math
import time
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Future
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
from navia.serve import schemas
from navia.serve.decoding import decode_images
from navia.serve.middleware import DASHBOARD_FILES, AccessMiddleware, RequestRefusedError
from navia.serve.predictor import BusyError
from navia.serve.service import Service
from navia.serve.settings import TOP_K, Limits
from navia.serve.stats import count

_BYTES = "application/octet-stream"  # a delta as safetensors, an image file or an array
_ARRAYS = (_BYTES, "application/x-npy")
_FILE = {"type": "string", "format": "binary"}
_EVENT = {"schema": {"type": "object", "properties": {"event": {"type": "string"}, "data": {"type": "string"}}}}
_FORM = {
    "type": "object",
    "properties": {
        "images": {"type": "array", "items": _FILE, "minItems": 1},
        "top": {"type": "integer", "minimum": 1, "maximum": 1000, "default": TOP_K},
    },
    "required": ["images"],
}

Result = TypeVar("Result")


def _body(**kinds: Any) -> dict[str, Any]:
    return {"requestBody": {"required": True, "content": {kind: {"schema": schema} for kind, schema in kinds.items()}}}


_PREDICT_BODY = _body(
    **{"application/json": schemas.PredictBody.model_json_schema(), "multipart/form-data": _FORM, "image/*": _FILE},
    **dict.fromkeys(_ARRAYS, _FILE),
)


def _errors(*codes: int, **content: Any) -> dict[int | str, dict[str, Any]]:
    """Replies of a route for OpenAPI: its error codes, and the content of a success that is not JSON."""
    success: dict[int | str, dict[str, Any]] = {200: {"content": content}} if content else {}
    return success | {code: {"model": schemas.ErrorReply} for code in (401, 403, 408, 413, 429, *codes)}


def make_app(service: Service, loopback: bool = True) -> FastAPI:
    """Make the application of a service, which the caller starts and stops. loopback: it listens on this machine only."""
    app = FastAPI(title="navia", version=__version__, docs_url=None, redoc_url=None)
    app.add_middleware(AccessMiddleware, settings=service.settings, loopback=loopback, on_refused=service.stats.refuse)
    _add_predict(app, service)
    _add_control(app, service)
    _add_monitoring(app, service)
    _add_error_handlers(app, service)

    async def dashboard(request: Request) -> FileResponse:
        file, media_type = DASHBOARD_FILES[request.url.path]
        return FileResponse(file, media_type=media_type)

    for path in DASHBOARD_FILES:
        app.add_route(path, dashboard, methods=["GET"], include_in_schema=False)
    return app


def _add_predict(app: FastAPI, service: Service) -> None:
    limits, responses = service.settings.limits, _errors(400, 415, 422, 503, 504)

    @app.post("/v1/predict", response_model=schemas.PredictReply, responses=responses, openapi_extra=_PREDICT_BODY)
    async def predict(request: Request) -> Response:
        """Classify images: JSON with base64, a multipart form of files, or one image or array as the body."""
        arrived = time.monotonic()
        files, top = await _read_request(request, limits)
        decoding = service.decoders.submit(decode_images, files, service.vit.preprocessing, limits)
        images = await _result(decoding, limits.timeout)
        output = await _result(service.predictor.submit(images), limits.timeout)
        content = await asyncio.to_thread(schemas.encode_reply, output, service.names, top)  # other requests go on
        service.stats.replied(time.monotonic() - arrived)
        return Response(content, media_type="application/json")


def _add_control(app: FastAPI, service: Service) -> None:
    timeout = service.settings.limits.timeout

    async def reply(command: "Future[str]") -> schemas.ControlReply:
        return service.control_reply(await _result(command, timeout))

    @app.post("/v1/pause", responses=_errors())
    async def pause() -> schemas.ControlReply:
        """Stop adapting; predictions continue."""
        return service.pause(True)

    @app.post("/v1/resume", responses=_errors())
    async def resume() -> schemas.ControlReply:
        """Adapt again."""
        return service.pause(False)

    @app.post("/v1/reset", responses=_errors(503, 504))
    async def reset() -> schemas.ControlReply:
        """Return to the source model."""
        return await reply(service.reset())

    @app.post("/v1/rollback", responses=_errors(503, 504))
    async def rollback() -> schemas.ControlReply:
        """Return to the last remembered state, some steps ago."""
        return await reply(service.rollback())

    @app.get("/v1/delta", responses=_errors(503, 504, **{_BYTES: {"schema": _FILE}}))
    async def delta() -> Response:
        """Download the adapted parameters as safetensors: for `adapter.load`, or for another replica."""
        headers = {"content-disposition": 'attachment; filename="delta.safetensors"'}
        return Response(await _result(service.delta(), timeout), media_type=_BYTES, headers=headers)

    @app.put("/v1/delta", responses=_errors(422, 503, 504), openapi_extra=_body(**{_BYTES: _FILE}))
    async def put_delta(request: Request) -> schemas.ControlReply:
        """Continue from a delta of the same model, method and reducer."""
        return await reply(service.load_delta(await request.body()))


def _add_monitoring(app: FastAPI, service: Service) -> None:
    streams, cached = 0, (-math.inf, "")  # time and text of the last status that was made for a stream
    health: dict[int | str, dict[str, Any]] = {code: {"model": schemas.ErrorReply} for code in (403, 503)}

    class EventStream(StreamingResponse):
        """Counts as an open dashboard from before the first byte until it ends, however it ends."""

        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            nonlocal streams
            if streams >= service.settings.limits.max_streams:
                raise RequestRefusedError(503, "streams", "too many dashboards are open")
            streams += 1
            try:
                await super().__call__(scope, receive, send)
            finally:
                streams -= 1

    @app.get("/v1/status", responses=_errors())
    async def status() -> schemas.Status:
        """The status of the service."""
        return service.status()

    @app.get("/v1/recent", responses=_errors(422))
    async def recent(after: Annotated[int, Query(ge=0, le=2**53)] = 0) -> schemas.RecentReply:
        """The last images and their predictions."""
        return schemas.RecentReply(images=await asyncio.to_thread(service.recent_images, after))

    @app.get("/v1/events", responses=_errors(503, **{"text/event-stream": _EVENT}))
    async def events(once: bool = False) -> StreamingResponse:
        """The status once a second, as server-sent events (once: only one)."""
        return EventStream(stream(once), media_type="text/event-stream")

    async def stream(once: bool) -> AsyncIterator[str]:
        nonlocal cached
        while service.ready:
            now = time.monotonic()
            if now - cached[0] > 0.2:
                cached = now, service.status().model_dump_json()
            yield f"event: status\ndata: {cached[1]}\n\n"
            if once:
                return
            await asyncio.sleep(1 - time.monotonic() % 1)  # all streams at the same moment, so that they share one status

    @app.get("/metrics", responses=_errors(**{"text/plain": {"schema": {"type": "string"}}}))
    async def metrics() -> Response:
        """Metrics for Prometheus."""
        return Response(service.metrics(), media_type="text/plain; version=0.0.4")

    @app.get("/healthz", responses=health)
    async def healthz() -> dict[str, str]:
        """Whether the process works; restart it otherwise."""
        if service.ready and not service.alive:
            raise HTTPException(503, "a thread of the service ended")
        return {"status": "ok"}

    @app.get("/readyz", responses=health)
    async def readyz() -> schemas.ReadyReply:
        """Whether the service accepts requests, and the age of the newest checkpoint."""
        if not (service.ready and service.alive):
            raise HTTPException(503, "not ready")
        failures = count(service.stats.checkpoint_failures)
        return schemas.ReadyReply(checkpoint_seconds_ago=service.checkpoint_age, checkpoint_failures=failures)


def _add_error_handlers(app: FastAPI, service: Service) -> None:
    """Give every error the same form, and count it by reason."""

    def handle(kind: type[Exception], status: int, reason: str, text: Callable[[Any], str] = str) -> None:
        async def reply(_: Request, error: Exception) -> JSONResponse:
            service.stats.refuse(reason)
            return JSONResponse({"error": text(error)}, status, {"retry-after": "1"} if reason == "busy" else None)

        app.add_exception_handler(kind, reply)

    async def reply_as_given(_: Request, error: Any) -> JSONResponse:
        service.stats.refuse(error.reason if isinstance(error, RequestRefusedError) else "http")
        return JSONResponse({"error": error.detail}, error.status_code, error.headers)

    app.add_exception_handler(HTTPException, reply_as_given)
    handle(InputError, 422, "image")
    handle(DeltaError, 422, "delta")
    handle(BusyError, 503, "busy")
    handle(NaviaError, 503, "other")
    handle(TimeoutError, 504, "timeout", lambda _: f"no reply within {service.settings.limits.timeout:g} s")
    handle(ClientDisconnect, 400, "gone", lambda _: "the connection ended before the body did")
    handle(RequestValidationError, 422, "request", lambda error: _join(error.errors()))
    handle(Exception, 500, "error", lambda _: "internal error; the log of the service has the details")


def _join(errors: Sequence[Any]) -> str:
    """The first errors of pydantic as one line."""
    return "; ".join(f"{'.'.join(map(str, e['loc'])) or 'body'}: {e['msg']}" for e in errors[:3])


async def _result(future: "Future[Result]", timeout: float) -> Result:
    """The result, or TimeoutError. A task that has not started by then never starts; a running one continues."""
    try:
        return await asyncio.wait_for(asyncio.wrap_future(future), timeout)
    finally:
        future.cancel()


async def _read_request(request: Request, limits: Limits) -> tuple[list[bytes], int]:
    """The files of a request, and the number of classes to return."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "application/json":
        files, top = await asyncio.to_thread(_read_json, await request.body())
    elif kind == "multipart/form-data":
        files, top = await _read_form(request, limits)
    elif kind.startswith("image/") or kind in _ARRAYS:
        files, top = [await request.body()], TOP_K
    else:
        accepted = f"send application/json, multipart/form-data, image/*, {' or '.join(_ARRAYS)}"
        raise RequestRefusedError(415, "type", accepted)
    if not files:
        raise RequestRefusedError(422, "request", "no image in the request")
    if len(files) > limits.max_images:
        raise RequestRefusedError(422, "request", f"more than {limits.max_images} images in one request")
    return files, top


def _read_json(content: bytes) -> tuple[list[bytes], int]:
    try:
        body = schemas.PredictBody.model_validate_json(content)
    except pydantic.ValidationError as error:
        raise RequestRefusedError(422, "request", _join(error.errors())) from error
    files = []
    for position, text in enumerate(body.images):
        try:
            files.append(base64.b64decode(text, validate=True))
        except (binascii.Error, ValueError) as error:
            raise RequestRefusedError(422, "request", f"images.{position}: no base64") from error
    return files, body.top


async def _read_form(request: Request, limits: Limits) -> tuple[list[bytes], int]:
    most = {"max_files": limits.max_images + 1, "max_fields": 16, "max_part_size": 1000}  # the last one is for fields only
    parser = MultiPartParser(request.headers, request.stream(), **most)
    parser.spool_max_size = limits.max_body_bytes + 1  # larger files would be written to disk
    try:
        form = await parser.parse()
    except MultiPartException as error:
        raise RequestRefusedError(400, "request", f"no readable form: {error.message}") from error
    files = [await value.read() for _, value in form.multi_items() if isinstance(value, UploadFile)]
    await form.close()
    top = form.get("top", str(TOP_K))
    if not isinstance(top, str) or not top.isdecimal() or not 1 <= int(top) <= 1000:
        raise RequestRefusedError(422, "request", "top: a number from 1 to 1000 is needed")
    return files, int(top)
