"""The configured model as a start sees it, checked in a process of its own.

That takes torch and transformers. Imported beside Ray's start they take the interpreter's lock from
it for seconds, and whoever serves clients would keep them.
"""

import os
import pickle
import subprocess
import sys
from dataclasses import dataclass, replace

from raydix.errors import EngineDead, RaydixError
from raydix.runtime.actors.bootstrap.engine_sizes import (
    EngineSizes,
    measure_checkpoint,
    size_engine,
)
from raydix.runtime.actors.process import end_with_parent
from raydix.runtime.config.engine import EngineConfig
from raydix.runtime.config.paths import HubName
from raydix.runtime.garbage import nothing_collected
from raydix.runtime.model.checkpoint.checkpoint_config import read_checkpoint_config
from raydix.runtime.model.checkpoint.hub import settings_folder
from raydix.runtime.model.checkpoint.late_import import hidden


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedModel:
    """What is known of a model before any rank has started."""

    sizes: EngineSizes
    checkpoint: bytes
    """A pickled `CheckpointConfig`, for ranks to read."""


def check_model(config: EngineConfig) -> CheckedModel:
    """Measure the configured model, and compare the headers of its weights with its config.

    The Hub's weights are not here yet. Raises CheckpointError, ConfigError for a model that does
    not fit, or EngineDead if the process that checks it ends.
    """
    # Where torch is already, a process that imports it again would only take longer.
    return check_here(config) if "torch" in sys.modules else check_apart(config)


def check_here(config: EngineConfig) -> CheckedModel:
    """Check a model in this process."""
    model = measure_checkpoint(config)
    if config.model.load_format == "auto" and HubName.parse(config.model.path) is None:
        # Imported here: torch takes seconds, and whoever starts an engine does without.
        from raydix.runtime.model.checkpoint.checkpoint import check_weights

        check_weights(config.model.path, model.checkpoint)
    sizes = size_engine(config, model)
    on_cuda = config.model.device == "cuda"
    if on_cuda and config.stores_experts and model.checkpoint.quantisation.restores_what_could_stay:
        # The GPUs are not here, or of a kind that others of the cluster need not be of.
        from raydix.runtime.model.checkpoint.native_weights import KERNEL_CAPABILITY

        kept = measure_checkpoint(config, KERNEL_CAPABILITY)
        sizes = replace(sizes, kept_store_bytes=kept.all_expert_bytes)
    return CheckedModel(sizes=sizes, checkpoint=pickle.dumps(model.checkpoint))


def check_apart(config: EngineConfig) -> CheckedModel:
    """Check a model in another process, which ends with this one."""
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        # It would say that it finds no torch: see `answer`.
        "TRANSFORMERS_NO_ADVISORY_WARNINGS": "1",
    }
    done = subprocess.run(
        [sys.executable, "-c", f"from {__name__} import answer; answer({os.getpid()})"],
        input=pickle.dumps(config),
        stdout=subprocess.PIPE,
        env=environment,
        check=False,
        # A terminal's Ctrl-C is for us alone, from the first import there on.
        process_group=0,
    )
    if done.returncode != 0:
        raise EngineDead(
            f"the process that checks the model ended with exit code {done.returncode}; what it "
            "said is above. Try again once this host has less to do."
        )
    answered: CheckedModel | RaydixError = pickle.loads(done.stdout)
    if isinstance(answered, RaydixError):
        raise answered
    return answered


def answer(asker: int) -> None:
    """Check the model of the configuration on stdin, and write what came of it to stdout.

    asker: the process that waits for it, our parent. Once that has ended nobody does.
    """
    end_with_parent()
    if os.getppid() != asker:
        # It ended while we imported all this, too early for the kernel to end us.
        return
    config: EngineConfig = pickle.load(sys.stdin.buffer)

    # Libraries may print.
    with os.fdopen(os.dup(1), "wb") as stdout:
        os.dup2(2, 1)
        answered: CheckedModel | RaydixError
        try:
            # Of a family's config transformers wants to tell in which models it is used, and with
            # torch in sight imports all that these may need: 4 s on a host with many packages.
            with nothing_collected():
                with hidden("torch"):
                    read_checkpoint_config(settings_folder(config.model.path))
                answered = check_here(config)
        except RaydixError as error:
            answered = error
        pickle.dump(answered, stdout)
