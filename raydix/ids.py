"""The kinds of identifiers, one `NewType` each, so that a type checker tells them apart."""

from typing import NewType

RequestId = NewType("RequestId", str)
ClientId = NewType("ClientId", str)
"""One link of a client, used once in the life of a Scheduler."""
AskingId = NewType("AskingId", int)
"""One submission of a client, which counts its own and uses no number twice on a link."""
HostPageId = NewType("HostPageId", int)
"""A page of the node's arena (L2)."""
PageKey = NewType("PageKey", bytes)
"""32 bytes: the chained digest of a page's tokens and of everything before it."""
LeaseId = NewType("LeaseId", int)
"""One asking for host pages to read, counted by the Scheduler, never used twice."""
LookupId = NewType("LookupId", int)
"""One asking for what L2 and L3 hold of a chain, counted by the Scheduler, never used twice."""
SchedulerName = NewType("SchedulerName", str)
"""What a Scheduler calls itself in its hello; the next one in its place has the same name."""
ConnectionId = NewType("ConnectionId", int)
"""One link between two actors, from hello to close, counted by who takes it, never used twice."""
TransferId = NewType("TransferId", int)
"""One load or backup: a set of page copies that is acknowledged as a whole."""
BatchId = NewType("BatchId", int)
"""One batch of storage operations ordered by HostMemory."""
SourceId = NewType("SourceId", int)
"""A place from which a Scheduler gets pages; HostMemory counts other nodes from 2 on, and uses no
number twice.
"""
L2_SOURCE = SourceId(0)
"""The node's own L2."""
L3_SOURCE = SourceId(1)
"""The storage behind it."""
NodeId = NewType("NodeId", int)
"""A node of a service, counted by the ingress that found it; one that comes back has another."""
NO_TOKEN = -1
"""No token could be sampled, as the logits are not finite; it stands in arrays of sampled tokens.
"""
Slot = NewType("Slot", int)
"""A running request's row in the per-request state of a GPU actor."""
Rank = NewType("Rank", int)
GrammarKey = NewType("GrammarKey", bytes)
"""16 bytes: the digest of a grammar as it was asked for."""
LogicalExpertId = NewType("LogicalExpertId", int)
"""An expert of a layer, numbered as in the checkpoint."""
UserId = NewType("UserId", int)
"""Who uses cached pages: a session of one tenant, or a single request that is of no session."""
SEVERAL_USERS = UserId(0)
"""Stands where pages have more than one user, so that none of them decides for the others."""
PinId = NewType("PinId", str)
"""The name of a pin among those of its tenant."""
TenantId = NewType("TenantId", int)
"""The owner of a budget of kept pages: the digest of a cache salt as far as its first slash."""
