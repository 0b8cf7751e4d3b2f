//! The session, told what happened and asked what to do.
