"""What a reader must find in each kind of bad object."""

from raydix.runtime.messages.host import ObjectStatus
from raydix.runtime.storage.backends.corruption import Corruption

FOUND_AS = {
    Corruption.EMPTY: ObjectStatus.TOO_SHORT,
    Corruption.SHORT: ObjectStatus.TOO_SHORT,
    Corruption.LONG: ObjectStatus.WRONG_LENGTH,
    Corruption.ZEROED: ObjectStatus.BAD_MAGIC,
    Corruption.ZERO_PAYLOAD: ObjectStatus.BAD_CHECKSUM,
    Corruption.TORN: ObjectStatus.BAD_CHECKSUM,
    Corruption.FLIPPED: ObjectStatus.BAD_CHECKSUM,
    Corruption.MAGIC: ObjectStatus.BAD_MAGIC,
    Corruption.STALE: ObjectStatus.BAD_VERSION,
    Corruption.CODEC: ObjectStatus.WRONG_CODEC,
    Corruption.LENGTH: ObjectStatus.WRONG_LENGTH,
    Corruption.GROUP: ObjectStatus.WRONG_KEY,
    Corruption.CHECKSUM: ObjectStatus.BAD_CHECKSUM,
    Corruption.FOREIGN: ObjectStatus.WRONG_NAMESPACE,
    Corruption.SWAPPED: ObjectStatus.WRONG_KEY,
}
