//! Budgets, waits and refusals: the small machines that keep us a good guest.
