"""The types of nodes, in the numbers of QA-GNN.

An answer entity is a node that the answer names, a query entity one that only the query names. Where there
are no answers (pairs of a graph and a text, retrieval) the types in use are query entity, other and query
node.
"""

QUERY_ENTITY, ANSWER_ENTITY, OTHER, QUERY_NODE = range(4)
NODE_TYPES = ("query entity", "answer entity", "other", "query node")
"""Name of each type."""
N_QUERY_RELATIONS = 2
"""Relations of the query node: to query entities, then to answer entities."""


def n_relations(n_raw: int) -> int:
    """Number of relations of the edges of graphs with `n_raw` relations of their own: those, the two of the
    query node, and the inverse of each."""
    return 2 * (n_raw + N_QUERY_RELATIONS)
