//! Servers on this machine. Their certificates, valid for a hundred years, are in `tests/data/tls`: a CA's own, as
//! `openssl req -x509` makes it, and one that it signed for `localhost` and `127.0.0.1`.

use std::net::TcpListener;
use std::sync::Arc;
use std::thread::JoinHandle;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};

use super::*;

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/tls").join(name)
}

/// Reads a request and sends an answer.
fn answer(stream: &mut (impl Read + Write), text: &str) -> io::Result<String> {
    let mut asked = Vec::new();
    let mut byte = [0];
    while !asked.ends_with(b"\r\n\r\n") && stream.read(&mut byte)? > 0 {
        asked.push(byte[0]);
    }
    stream.write_all(text.as_bytes())?;
    stream.flush()?;
    Ok(String::from_utf8_lossy(&asked).into_owned())
}

/// A server that answers one request per text; returns the requests.
fn serve(texts: Vec<String>) -> (u16, JoinHandle<Vec<String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let work = move || {
        let one = |text: &String| answer(&mut listener.accept().unwrap().0, text).unwrap();
        texts.iter().map(one).collect()
    };
    (port, thread::spawn(work))
}

fn ok(body: &str) -> String {
    format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len())
}

/// The result of a fetch from a server with this answer.
fn fetched(text: &str) -> Result<Secret, String> {
    let (port, server) = serve(vec![text.to_owned()]);
    let done = get(&format!("http://127.0.0.1:{port}/key"), &Trust::default());
    server.join().unwrap();
    done.map_err(|e| e.replace(&port.to_string(), "PORT"))
}

#[test]
fn a_key_is_what_the_answer_holds() {
    let (port, server) = serve(vec![ok("password\n")]);
    let key = get(&format!("http://127.0.0.1:{port}/a/key?of=tank#part"), &Trust::default());
    assert_eq!(&*key.unwrap(), b"password\n");
    let asked = server.join().unwrap();
    assert!(asked[0].starts_with("GET /a/key?of=tank HTTP/1.0\r\n"), "{}", asked[0]);
    assert!(asked[0].contains(&format!("\r\nHost: 127.0.0.1:{port}\r\n")), "{}", asked[0]);
    // An answer without a length ends with the connection; one that continues past its length is cut.
    assert_eq!(&*fetched("HTTP/1.0 200 OK\r\n\r\npassword").unwrap(), b"password");
    assert_eq!(&*fetched("HTTP/1.0 200 OK\r\ncontent-length: 4\r\n\r\npassword").unwrap(), b"pass");
}

#[test]
fn invalid_keys_are_refused_with_the_reason() {
    let at = "http://127.0.0.1:PORT/key";
    let cannot = |why: &str| Err(format!("Failed to connect to {at}: {why}"));
    let not_found = "HTTP/1.0 404 Not Found\r\nContent-Length: 4\r\n\r\nnone";
    assert_eq!(fetched(not_found), Err(format!("Couldn't GET {at}: 404")));
    assert_eq!(fetched(&ok(&"x".repeat(5000))), cannot("the answer is longer than a key can be"));
    let endless = format!("HTTP/1.0 200 OK\r\n\r\n{}", "x".repeat(5000));
    assert_eq!(fetched(&endless), cannot("the answer is longer than a key can be"));
    let short = "HTTP/1.0 200 OK\r\nContent-Length: 9\r\n\r\npass";
    assert_eq!(fetched(short), cannot("the answer is cut short"));
    assert_eq!(fetched("HTTP/1.0 200 OK\r\n"), cannot("the answer is cut short"));
    assert_eq!(fetched("SSH-2.0-OpenSSH_9\r\n\r\n"), cannot("invalid HTTP response"));
    let pieces = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\npass\r\n0\r\n\r\n";
    assert!(fetched(pieces).unwrap_err().contains("chunked response"));
    let (port, server) = serve(Vec::new());
    server.join().unwrap();
    let refused = get(&format!("http://127.0.0.1:{port}/"), &Trust::default()).unwrap_err();
    assert!(refused.contains("refused"), "{refused}");
}

#[test]
fn servers_may_send_us_elsewhere_but_not_round_and_round() {
    let elsewhere = "HTTP/1.0 302 Found\r\nLocation: /there\r\n\r\n".to_owned();
    let (port, server) = serve(vec![elsewhere.clone(), ok("key")]);
    let trust = Trust::default();
    assert_eq!(&*get(&format!("http://127.0.0.1:{port}/here"), &trust).unwrap(), b"key");
    assert!(server.join().unwrap()[1].starts_with("GET /there "));
    let (port, server) = serve(vec![elsewhere; MAX_HOPS + 1]);
    let why = get(&format!("http://127.0.0.1:{port}/here"), &trust).unwrap_err();
    assert!(why.ends_with("Too many redirects"), "{why}");
    server.join().unwrap();
    let from = Url::parse("https://host/a").unwrap();
    assert!(from.follow("http://host/b").is_err() && from.follow("file:///b").is_err());
    assert_eq!(from.follow("//other:8443/b").unwrap(), Url::parse("https://other:8443/b").unwrap());
}

#[test]
fn urls_are_taken_apart() {
    let url = |text: &str| Url::parse(text).ok().map(|url| (url.tls, url.authority(), url.port, url.path));
    let some = |tls, host: &str, port, path: &str| Some((tls, host.to_owned(), port, path.to_owned()));
    assert_eq!(url("https://host"), some(true, "host", 443, "/"));
    assert_eq!(url("http://host?x"), some(false, "host", 80, "/?x"));
    assert_eq!(url("https://[::1]:80/k"), some(true, "[::1]:80", 80, "/k"));
    for wrong in ["ftp://host/", "https://", "https://host:port/", "https://me:word@host/", "http://a b/"] {
        assert_eq!(url(wrong), None, "{wrong}");
    }
}

/// The result of a TLS fetch from a server with this certificate.
fn sealed(cert: &str, key: &str, host: &str, trust: &Trust) -> Result<Secret, String> {
    let certs = CertificateDer::pem_file_iter(data(cert)).unwrap().collect::<Result<_, _>>().unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let key = PrivateKeyDer::from_pem_file(data(key)).unwrap();
    let config = config.unwrap().with_no_client_auth().with_single_cert(certs, key).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let server = thread::spawn(move || {
        let tls = ServerConnection::new(Arc::new(config)).unwrap();
        // A client that does not trust the server hangs up. It closes without a TLS message, as many do.
        let _ = answer(&mut StreamOwned::new(tls, listener.accept().unwrap().0), &ok("secret"));
    });
    let done = get(&format!("https://{host}:{port}/"), trust);
    server.join().unwrap();
    done
}

#[test]
fn only_trusted_servers_are_asked() {
    let trust = |name: &str| Trust { ca_file: Some(data(name)), ..Trust::default() };
    let server = |host, trust: &Trust| sealed("server.crt", "server.key", host, trust);
    assert_eq!(&*server("127.0.0.1", &trust("authority.crt")).unwrap(), b"secret");
    assert_eq!(&*server("localhost", &trust("authority.crt")).unwrap(), b"secret");
    let folder = Trust { ca_path: Some(data("")), ..Trust::default() };
    assert_eq!(&*server("localhost", &folder).unwrap(), b"secret");
    // A CA's own certificate, whose name matches no host, when it is the named one.
    let own = |trust: &Trust| sealed("authority.crt", "authority.key", "127.0.0.1", trust);
    assert_eq!(&*own(&trust("authority.crt")).unwrap(), b"secret");
    assert!(own(&trust("server.crt")).unwrap_err().contains("invalid peer certificate"));
    // The system's certificates include neither; without any certificate no server is trusted.
    assert!(server("localhost", &Trust::default()).unwrap_err().starts_with("Failed to connect to https://"));
    let missing = server("localhost", &trust("none.crt")).unwrap_err();
    assert!(missing.contains("none.crt"), "{missing}");
}
