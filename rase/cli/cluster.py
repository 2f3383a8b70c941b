"""``rase cluster run``: the server over several processes and machines, by Ray Serve."""

from __future__ import annotations

import click

from rase import env
from rase.cli.common import common_options, device_option, settings
from rase.cli.options import setting_options

__all__ = ["run"]


@click.command()
@click.argument("models", nargs=-1, metavar="[MODEL]...")
@setting_options(
    "RASE_REPLICAS", "RASE_MIN_REPLICAS", "RASE_MAX_REPLICAS", "RASE_TARGET_ONGOING_REQUESTS",
    "RASE_REPLICA_CPUS", "RASE_ROUTER", "RASE_RAY_ADDRESS", "RASE_HOST", "RASE_PORT", "RASE_API_KEY_FILE",
    "RASE_INSECURE", "RASE_ALLOW_HOST", "RASE_ALLOW_ORIGIN", "RASE_MAX_QUEUE", "RASE_MAX_BODY",
    "RASE_REQUEST_TIMEOUT", "RASE_DRAIN_TIMEOUT", "RASE_LOG_FORMAT", "RASE_OTEL", "RASE_DRAFT",
    "RASE_MEMORY_BUDGET", "RASE_MAX_BATCH_TOKENS", "RASE_MAX_BATCH_SEQS", "RASE_CHUNKED_PREFILL_SIZE",
    "RASE_MAX_MODEL_LEN", "RASE_KV_CACHE", "RASE_KV", "RASE_NUM_BLOCKS", "RASE_PREFIX_CACHING",
    "RASE_PREFIX_STORE", "RASE_PREFIX_STORE_SIZE", "RASE_SPECULATION", "RASE_IGNORE_EOS",
    "RASE_NUM_THREADS", "RASE_NUMERICS", "RASE_PREFILL",
)  # fmt: skip
@device_option
@common_options
def run(models: tuple[str, ...], device: str) -> int:
    """Serve each MODEL from several processes, on this machine or on those of a Ray cluster, until Ctrl-C.

    \b
    rase cluster run smollm2 --replicas 2
    rase cluster run smollm2 --min-replicas 1 --max-replicas 8 --ray-address auto

    The interface, its checks and its options are those of `rase serve`; without MODEL it is the one that the
    store has. Requests with the same beginning meet in one replica, whose cache knows it. When a replica
    dies, the requests that it had fail with 503 and another one takes its place.

    Without --ray-address Ray runs on this machine only, without its dashboard, for whoever has the token that
    it makes up, and ends with the command. On a running cluster every machine needs rase, and the models in
    its store under the same ids.
    Whoever reaches the ports of a running Ray can run code in it, unless it asks for a token: RAY_AUTH_MODE.
    """
    from rase.cluster.config import read_config  # or what to install

    env.check()
    from rase.cluster.run import run as serve

    config = read_config(models, device, shared=bool(env.get("RASE_RAY_ADDRESS")))
    return serve(config, settings().open_store())
