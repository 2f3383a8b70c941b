"""One call at a time, without a moment at which an interrupt could leave the claim behind.

Ctrl-C strikes between two steps of Python code, so a lock that Python takes can stay locked for ever. Here claim and
release are compiled: an interrupt can only strike inside the call, and ends it like any exception.
"""

cdef extern from *:
    """
    static int rase_claim(int *taken) { return !__atomic_exchange_n(taken, 1, __ATOMIC_ACQUIRE); }
    static void rase_release(int *taken) { __atomic_store_n(taken, 0, __ATOMIC_RELEASE); }
    """
    bint rase_claim(int *taken) noexcept
    void rase_release(int *taken) noexcept


class InUse(Exception):
    """Another call is running."""


cdef class Exclusive:
    """``call`` runs one function at a time and refuses a second one with ``InUse``, from whatever thread."""

    cdef int taken

    def call(self, function, *arguments):
        if not rase_claim(&self.taken):
            raise InUse
        try:
            return function(*arguments)
        finally:
            rase_release(&self.taken)
