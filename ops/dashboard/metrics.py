"""The route `/metrics`, in the format that the scraper requests: Prometheus text or OpenMetrics."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Header, Response
from prometheus_client.exposition import choose_encoder

from ops.metrics.collector import registry_of
from ops.web.context import Served

router = APIRouter(tags=["service"])


@router.get(
    "/metrics", response_class=Response, responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}}
)
def metrics(served: Served, accept: Annotated[str, Header()] = "") -> Response:
    """Returns the current metrics of the ledger and its runs."""
    encode, media_type = choose_encoder(accept)
    return Response(encode(registry_of(served.ledger)), media_type=media_type)
