-- What all nodes share to serve TLS: account, certificate with its key, pending challenge and past orders, by name.
CREATE TABLE tls (
    item TEXT PRIMARY KEY,
    text TEXT NOT NULL
);
