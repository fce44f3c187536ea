"""The families that there are: one line for each file beside this one."""

from enum import Enum

from raydix.runtime.model.families.deepseek import DEEPSEEK_V2, DEEPSEEK_V3, KIMI_K2, KIMI_K25
from raydix.runtime.model.families.gemma import GEMMA2, GEMMA3, GEMMA3_WITH_VISION
from raydix.runtime.model.families.gemma4 import (
    GEMMA4,
    GEMMA4_UNIFIED,
    GEMMA4_UNIFIED_TEXT,
    GEMMA4_WITH_TOWERS,
)
from raydix.runtime.model.families.glm4_moe import GLM4_MOE
from raydix.runtime.model.families.gpt_oss import GPT_OSS
from raydix.runtime.model.families.llama import LLAMA
from raydix.runtime.model.families.mimo_v2_flash import MIMO_V2_FLASH
from raydix.runtime.model.families.minimax_m2 import MINIMAX_M2
from raydix.runtime.model.families.mistral import MINISTRAL3, MISTRAL, MISTRAL3
from raydix.runtime.model.families.mixtral import MIXTRAL
from raydix.runtime.model.families.olmo3 import OLMO3
from raydix.runtime.model.families.phi3 import PHI3
from raydix.runtime.model.families.qwen2 import QWEN2
from raydix.runtime.model.families.qwen2_moe import QWEN2_MOE
from raydix.runtime.model.families.qwen3 import QWEN3, QWEN3_VL
from raydix.runtime.model.families.qwen3_moe import QWEN3_MOE, QWEN3_VL_MOE
from raydix.runtime.model.families.qwen3_next import (
    QWEN3_5,
    QWEN3_5_MOE,
    QWEN3_5_MOE_TEXT,
    QWEN3_5_TEXT,
    QWEN3_NEXT,
)
from raydix.runtime.model.families.seed_oss import SEED_OSS


class Family(Enum):
    """Supported families of models."""

    LLAMA = LLAMA
    QWEN2 = QWEN2
    QWEN3 = QWEN3
    QWEN3_MOE = QWEN3_MOE
    QWEN3_5 = QWEN3_5
    QWEN3_5_TEXT = QWEN3_5_TEXT
    QWEN3_5_MOE = QWEN3_5_MOE
    QWEN3_5_MOE_TEXT = QWEN3_5_MOE_TEXT
    QWEN3_NEXT = QWEN3_NEXT
    MISTRAL = MISTRAL
    MIXTRAL = MIXTRAL
    DEEPSEEK_V2 = DEEPSEEK_V2
    DEEPSEEK_V3 = DEEPSEEK_V3
    GEMMA2 = GEMMA2
    GEMMA3 = GEMMA3
    GEMMA3_WITH_VISION = GEMMA3_WITH_VISION
    GEMMA4 = GEMMA4
    GEMMA4_WITH_TOWERS = GEMMA4_WITH_TOWERS
    GEMMA4_UNIFIED_TEXT = GEMMA4_UNIFIED_TEXT
    GEMMA4_UNIFIED = GEMMA4_UNIFIED
    GPT_OSS = GPT_OSS
    GLM4_MOE = GLM4_MOE
    MINIMAX_M2 = MINIMAX_M2
    OLMO3 = OLMO3
    QWEN2_MOE = QWEN2_MOE
    SEED_OSS = SEED_OSS
    MIMO_V2_FLASH = MIMO_V2_FLASH
    KIMI_K2 = KIMI_K2
    KIMI_K25 = KIMI_K25
    MISTRAL3 = MISTRAL3
    MINISTRAL3 = MINISTRAL3
    QWEN3_VL = QWEN3_VL
    QWEN3_VL_MOE = QWEN3_VL_MOE
    PHI3 = PHI3
