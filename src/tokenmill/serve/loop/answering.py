"""A request is prepared in a thread, handed to the driver, and its answer written as its pieces come, or whole."""

from contextlib import aclosing

from starlette.responses import JSONResponse, Response

from tokenmill.engine.outputs import Completion
from tokenmill.serve.http.disconnect import unless_disconnected
from tokenmill.serve.loop.event_stream import EventStream
from tokenmill.serve.loop.service import tenant_of
from tokenmill.serve.loop.work import Work


async def answered(work: Work) -> Response:
    """The response: a stream of events if the body asks for one."""
    work.service.check_ready()
    work.service.check(work.body)
    work.check_number()
    if work.body.stream:
        return EventStream(work)
    with work.service.admission.slots(work.num_slots, tenant_of(work.request)):
        return await unless_disconnected(work.request, _whole(work))


async def _whole(work: Work) -> Response:
    prepared, form = await work.begin()
    done: list[Completion | None] = [None] * len(prepared.request.sequences)
    async with aclosing(work.service.driver.pieces(prepared.request, form.id)) as steps:
        async for pieces in steps:
            for piece in pieces:
                done[piece.index] = piece.done
    completions = [each for each in done if each is not None]  # with log-probabilities they may be long
    return await work.service.in_thread(work.request, lambda: JSONResponse(form.answer(completions)))
