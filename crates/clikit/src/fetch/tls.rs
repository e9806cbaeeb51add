//! TLS: trusted certificates and our own identity.

use std::io;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{
    CertificateError, ClientConfig, ClientConnection, DigitallySignedStruct, OtherError, RootCertStore,
    SignatureScheme, StreamOwned,
};

use super::{bad, path_of};

/// Locations of the trusted certificates of common systems.
const SYSTEM: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// Certificates named by the environment.
#[derive(Debug, Clone, Default)]
pub struct Trust {
    /// `SSL_CA_CERT_FILE`: trusted certificates, instead of the system's.
    pub ca_file: Option<PathBuf>,
    /// `SSL_CA_CERT_PATH`: a directory of such files.
    pub ca_path: Option<PathBuf>,
    /// `SSL_CLIENT_CERT_FILE`: our own certificate.
    pub cert: Option<PathBuf>,
    /// `SSL_CLIENT_KEY_FILE`: its key; without this variable the key is in the same file.
    pub key: Option<PathBuf>,
}

fn named(path: &Path, e: &dyn std::fmt::Display) -> io::Error {
    bad(&format!("{}: {e}", path.display()))
}

fn certificates(path: &Path) -> io::Result<Vec<CertificateDer<'static>>> {
    let all = CertificateDer::pem_file_iter(path).map_err(|e| named(path, &e))?;
    all.collect::<Result<_, _>>().map_err(|e| named(path, &e))
}

impl Trust {
    /// The environment variables used.
    pub const WORDS: [&str; 4] =
        ["SSL_CA_CERT_FILE", "SSL_CA_CERT_PATH", "SSL_CLIENT_CERT_FILE", "SSL_CLIENT_KEY_FILE"];

    /// Reads this process's environment.
    pub fn of_environment() -> Self {
        let [ca_file, ca_path, cert, key] = Self::WORDS.map(path_of);
        Self { ca_file, ca_path, cert, key }
    }

    /// Certificates that the user named; `None` selects the system's.
    fn given(&self) -> io::Result<Option<Vec<CertificateDer<'static>>>> {
        if self.ca_file.is_none() && self.ca_path.is_none() {
            return Ok(None);
        }
        let mut all = self.ca_file.as_deref().map_or(Ok(Vec::new()), certificates)?;
        if let Some(folder) = &self.ca_path {
            for entry in std::fs::read_dir(folder).map_err(|e| named(folder, &e))? {
                // Other files in the directory are ignored.
                all.extend(certificates(&entry?.path()).unwrap_or_default());
            }
        }
        Ok(Some(all))
    }

    fn config(&self) -> io::Result<ClientConfig> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let given = self.given()?;
        let trusted = match &given {
            Some(given) => given.clone(),
            None => SYSTEM.iter().find_map(|path| certificates(Path::new(path)).ok()).unwrap_or_default(),
        };
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(trusted);
        let verifier = Verifier::new(roots, given.unwrap_or_default(), Arc::clone(&provider))?;
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(io::Error::other)?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier));
        let Some(cert) = &self.cert else { return Ok(config.with_no_client_auth()) };
        let file = self.key.as_ref().unwrap_or(cert);
        let key = PrivateKeyDer::from_pem_file(file).map_err(|e| named(file, &e))?;
        config.with_client_auth_cert(certificates(cert)?, key).map_err(io::Error::other)
    }

    /// Encrypts a connection.
    pub fn encrypt(
        &self,
        tcp: TcpStream,
        host: &str,
    ) -> io::Result<StreamOwned<ClientConnection, TcpStream>> {
        let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
        let tls = ClientConnection::new(Arc::new(self.config()?), name).map_err(io::Error::other)?;
        Ok(StreamOwned::new(tls, tcp))
    }
}

/// Trusts certificates that one of the roots signed for the host, and a CA certificate itself when the user named
/// it: its key could sign others for any name. `openssl req -x509` creates such certificates, and many small
/// servers present them.
#[derive(Debug)]
struct Verifier {
    inner: Arc<WebPkiServerVerifier>,
    given: Vec<CertificateDer<'static>>,
}

impl Verifier {
    fn new(
        roots: RootCertStore,
        given: Vec<CertificateDer<'static>>,
        provider: Arc<CryptoProvider>,
    ) -> io::Result<Self> {
        if roots.is_empty() {
            return Err(bad("there are no certificates to trust"));
        }
        let inner = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider).build();
        Ok(Self { inner: inner.map_err(io::Error::other)?, given })
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let found = self.inner.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now);
        match found {
            Err(e) if is_authority(&e) && self.given.iter().any(|given| given == end_entity) => {
                Ok(ServerCertVerified::assertion())
            }
            found => found,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.inner.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.inner.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}

/// Whether the only error so far is that the server presents a CA certificate (the validity period is checked
/// before).
fn is_authority(e: &rustls::Error) -> bool {
    let rustls::Error::InvalidCertificate(CertificateError::Other(OtherError(cause))) = e else {
        return false;
    };
    matches!(cause.downcast_ref(), Some(webpki::Error::CaUsedAsEndEntity))
}
