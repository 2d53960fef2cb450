//! TLS to servers. A build without the feature `tls` leaves it out.

#[cfg(feature = "tls")]
pub(super) use with::{Stream, Trust, secure, trust};
#[cfg(not(feature = "tls"))]
pub(super) use without::{Trust, never, trust};

/// Why TLS cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TrustError {
    /// A certificate cannot be parsed.
    #[cfg(feature = "tls")]
    #[error(transparent)]
    Pem(#[from] rustls::pki_types::pem::Error),
    /// The library of TLS refuses a certificate.
    #[cfg(feature = "tls")]
    #[error(transparent)]
    Refused(#[from] rustls::Error),
    /// The file of certificates contains none.
    #[cfg(feature = "tls")]
    #[error("the file has no certificate")]
    Empty,
    /// The program has no TLS.
    #[cfg(not(feature = "tls"))]
    #[error(
        "this ebb was built without TLS; build it with: cargo build --release --package ebb-run"
    )]
    NotBuilt,
}

#[cfg(feature = "tls")]
mod with {
    use super::TrustError;
    use rustls::pki_types::pem::PemObject;
    use rustls::pki_types::{CertificateDer, ServerName};
    use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
    use std::io::{Error, Read, Result, Write};
    use std::sync::Arc;

    /// The certificates that a connection trusts.
    pub type Trust = Arc<ClientConfig>;
    /// A TLS stream over a plain one.
    pub type Stream<T> = StreamOwned<ClientConnection, T>;

    /// Trusts servers with a certificate of `ca`, or else of an authority that the system knows.
    pub fn trust(ca: Option<&[u8]>) -> std::result::Result<Trust, TrustError> {
        let mut roots = RootCertStore::empty();
        match ca {
            Some(ca) => {
                for certificate in CertificateDer::pem_slice_iter(ca) {
                    roots.add(certificate?)?;
                }
                if roots.is_empty() {
                    return Err(TrustError::Empty);
                }
            }
            // Certificates that cannot be parsed are skipped.
            None => {
                roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            }
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots);
        Ok(Arc::new(config.with_no_client_auth()))
    }

    /// Creates a TLS stream to `host`, before anything is sent.
    pub fn secure<T: Read + Write>(trust: &Trust, host: &str, stream: T) -> Result<Stream<T>> {
        let name = ServerName::try_from(host.to_owned()).map_err(Error::other)?;
        let connection = ClientConnection::new(trust.clone(), name).map_err(Error::other)?;
        Ok(StreamOwned::new(connection, stream))
    }
}

#[cfg(not(feature = "tls"))]
mod without {
    /// No value exists, because there is no TLS.
    pub enum Trust {}

    pub fn trust(_ca: Option<&[u8]>) -> Result<Trust, super::TrustError> {
        Err(super::TrustError::NotBuilt)
    }

    /// Is never called, because no `Trust` exists.
    pub fn never<T>(trust: &Trust, _host: &str) -> T {
        match *trust {}
    }
}
