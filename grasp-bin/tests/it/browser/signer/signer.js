// The signer of NIP-07 in the page: the process of the test signs.
window.nostr = {
  signEvent: (event) =>
    new Promise((resolve) => {
      window.signed = resolve;
      window.askedToSign(JSON.stringify(event));
    }),
};
