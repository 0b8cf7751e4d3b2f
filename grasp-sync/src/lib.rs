//! Keeps a relay complete: finds every other relay that its repositories name, reconciles events with each, and
//! stays subscribed (GRASP-02). The decisions will live in a pure `SyncEngine` that is told the time and what
//! happened and answers with what to do; a driver behind the feature `driver` owns the sockets. It knows neither git
//! nor which relay it lives in: a relay offers a feed of accepted events, a way in and an inventory, and that is all.
