"""One call at a time, without a moment at which an interrupt could leave the claim behind.

Ctrl-C strikes between two steps of Python code, so a lock that Python takes can stay locked for ever. Here claim and
release are compiled: an interrupt can only strike inside the call, and ends it like any exception.
"""

from libc.stdlib cimport free

cdef extern from "stdlib.h" nogil:
    int posix_memalign(void **, size_t, size_t)

cdef extern from "tickets.h" nogil:
    ctypedef struct rase_tickets:
        pass
    void rase_tickets_reset(rase_tickets *)
    int rase_tickets_take(rase_tickets *, int)


class InUse(Exception):
    """Another call is running."""


cdef class Exclusive:
    """``call`` runs one function at a time and refuses a second one with ``InUse``, from whatever thread."""

    cdef rase_tickets *claim  # one unit: whoever takes it runs

    def __cinit__(self):
        cdef void *block = NULL
        if posix_memalign(&block, 64, sizeof(rase_tickets)):
            raise MemoryError
        self.claim = <rase_tickets *>block
        rase_tickets_reset(self.claim)

    def __dealloc__(self):
        free(self.claim)

    def call(self, function, *arguments):
        if rase_tickets_take(self.claim, 1):
            raise InUse
        try:
            return function(*arguments)
        finally:
            rase_tickets_reset(self.claim)
