//! An S3 server on loopback that can be made to fail.
//!
//! Protocol and signatures are those of the `s3s` crate. Its own store of files, `s3s-fs`, has no room for keys as long as
//! ours.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http_body_util::BodyExt;
use hyper::body::{Bytes, Frame, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use nostr::key::Keys;
use s3s::auth::SimpleAuth;
use s3s::dto::{
    CompleteMultipartUploadInput, CompleteMultipartUploadOutput, CreateMultipartUploadInput,
    CreateMultipartUploadOutput, DeleteObjectsInput, DeleteObjectsOutput, DeletedObject,
    GetObjectInput, GetObjectOutput, ListObjectsV2Input, ListObjectsV2Output, Object,
    PutObjectInput, PutObjectOutput, StreamingBlob, Timestamp, UploadPartInput, UploadPartOutput,
};
use s3s::service::{S3Service, S3ServiceBuilder};
use s3s::{S3, S3Request, S3Response, S3Result, s3_error};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::task::AbortHandle;

/// The name of the one bucket.
pub const BUCKET: &str = "packs";

const ACCESS_KEY: &str = "AKIDEXAMPLE";
pub const SECRET_KEY: &str = "very-secret-0123456789";

/// A fault of a request.
#[derive(Clone, Debug)]
pub enum Fault {
    /// The server answers that it is overloaded, and does nothing.
    Unavailable,
    /// The answer comes after this time.
    Slow(Duration),
    /// The request is carried out, and the connection lost before the answer.
    LostAnswer,
    /// The connection is lost in the middle of the answer's body.
    CutAnswer,
    /// The answer waits until a permit is added, after one was added to the first for the test to know.
    Held(Arc<Semaphore>, Arc<Semaphore>),
}

/// Decides on the fault of a request, by its method and path with query.
type Script = Box<dyn FnMut(&str, &str) -> Option<Fault> + Send>;

#[derive(Default)]
struct Shared {
    script: Option<Script>,
    requests: Vec<(String, String)>,
}

/// A server with one bucket. It ends when it is dropped.
pub struct S3Server {
    root: PathBuf,
    temporary: Option<TempDir>,
    address: SocketAddr,
    shared: Arc<Mutex<Shared>>,
    server: AbortHandle,
}

impl Drop for S3Server {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl S3Server {
    /// Starts a server whose bucket is empty.
    pub async fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut server = Self::start_in(dir.path()).await;
        server.temporary = Some(dir);
        server
    }

    /// Starts a server with the objects that an earlier one left in a directory.
    pub async fn start_in(root: &Path) -> Self {
        std::fs::create_dir_all(root.join(BUCKET)).unwrap();
        let mut service = S3ServiceBuilder::new(Buckets(root.to_owned()));
        service.set_auth(SimpleAuth::from_single(ACCESS_KEY, SECRET_KEY));
        let service = Arc::new(service.build());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let shared: Arc<Mutex<Shared>> = Arc::default();
        let server = tokio::spawn(serve(listener, service, shared.clone())).abort_handle();
        Self {
            root: root.to_owned(),
            temporary: None,
            address,
            shared,
            server,
        }
    }

    /// The address of packs in the bucket.
    pub fn url(&self) -> String {
        format!("s3://{BUCKET}/some/prefix")
    }

    /// Variables of the environment that lead to this server.
    pub fn variables(&self) -> BTreeMap<String, String> {
        let variables = [
            ("AWS_ACCESS_KEY_ID", ACCESS_KEY.to_owned()),
            ("AWS_SECRET_ACCESS_KEY", SECRET_KEY.to_owned()),
            ("AWS_REGION", "garage".to_owned()),
            ("AWS_ENDPOINT_URL", format!("http://{}", self.address)),
        ];
        variables
            .map(|(name, value)| (name.to_owned(), value))
            .into()
    }

    /// The directory with the objects of the bucket.
    pub fn objects(&self) -> PathBuf {
        self.root.join(BUCKET).join("some/prefix")
    }

    /// Asks this function about the fault of each further request.
    pub fn script(&self, script: impl FnMut(&str, &str) -> Option<Fault> + Send + 'static) {
        self.shared.lock().unwrap().script = Some(Box::new(script));
    }

    /// Lets this fault happen to the next requests of a method for a path that contains a text.
    pub fn fail(
        &self,
        mut times: usize,
        (method, text): (&'static str, &'static str),
        fault: Fault,
    ) {
        self.script(move |of, path| {
            let is_hit = of == method && path.contains(text) && times > 0;
            times -= usize::from(is_hit);
            is_hit.then(|| fault.clone())
        });
    }

    /// Ends all faults.
    pub fn heal(&self) {
        self.shared.lock().unwrap().script = None;
    }

    /// Returns the number of requests of a method for a path that contains a text.
    pub fn count(&self, method: &str, text: &str) -> usize {
        let shared = self.shared.lock().unwrap();
        let is_counted = |(of, path): &&(String, String)| of == method && path.contains(text);
        shared.requests.iter().filter(is_counted).count()
    }
}

/// Buckets as directories, and objects as files in them.
struct Buckets(PathBuf);

impl Buckets {
    fn file(&self, bucket: &str, key: &str) -> S3Result<PathBuf> {
        let bucket = self.0.join(bucket);
        if bucket.is_dir() {
            Ok(bucket.join(key))
        } else {
            Err(s3_error!(NoSuchBucket))
        }
    }

    fn read(&self, bucket: &str, key: &str) -> S3Result<Vec<u8>> {
        std::fs::read(self.file(bucket, key)?).map_err(|_| s3_error!(NoSuchKey))
    }

    fn write(&self, bucket: &str, key: &str, content: &[u8]) -> S3Result<()> {
        let file = self.file(bucket, key)?;
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        // No reader sees a part of it.
        let new = self.0.join(Keys::generate().public_key().to_hex());
        std::fs::write(&new, content).unwrap();
        std::fs::rename(new, file).unwrap();
        Ok(())
    }

    /// Returns the path of a part of an upload, outside of any bucket.
    fn part(&self, upload: &str, number: i32) -> PathBuf {
        self.0.join(format!("{upload}.{number:05}"))
    }
}

fn files_below(dir: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(dir) else {
        return Vec::new();
    };
    let paths = entries.flatten().map(|entry| entry.path());
    paths
        .flat_map(|path| {
            if path.is_dir() {
                files_below(&path)
            } else {
                vec![path]
            }
        })
        .collect()
}

async fn content(body: Option<StreamingBlob>) -> Bytes {
    let body = s3s::Body::from(body.unwrap());
    http_body_util::BodyExt::collect(body)
        .await
        .unwrap()
        .to_bytes()
}

fn e_tag(content: &[u8]) -> Option<String> {
    Some(bitcoin_hashes::sha256::Hash::hash(content).to_string())
}

fn now() -> Option<Timestamp> {
    Some(std::time::SystemTime::now().into())
}

#[async_trait::async_trait]
impl S3 for Buckets {
    async fn put_object(
        &self,
        request: S3Request<PutObjectInput>,
    ) -> S3Result<S3Response<PutObjectOutput>> {
        let PutObjectInput {
            bucket, key, body, ..
        } = request.input;
        let content = content(body).await;
        self.write(&bucket, &key, &content)?;
        let e_tag = e_tag(&content);
        Ok(S3Response::new(PutObjectOutput {
            e_tag,
            ..Default::default()
        }))
    }

    async fn get_object(
        &self,
        request: S3Request<GetObjectInput>,
    ) -> S3Result<S3Response<GetObjectOutput>> {
        let GetObjectInput {
            bucket, key, range, ..
        } = request.input;
        let content = self.read(&bucket, &key)?;
        let all = content.len() as u64;
        let range = range.map(|range| range.check(all)).transpose()?;
        let content_range = range
            .as_ref()
            .map(|it| format!("bytes {}-{}/{all}", it.start, it.end - 1));
        let range = range.unwrap_or(0..all);
        let part = content[range.start as usize..range.end as usize].to_vec();
        Ok(S3Response::new(GetObjectOutput {
            content_length: Some(part.len() as i64),
            content_range,
            e_tag: e_tag(&content),
            last_modified: now(),
            body: Some(s3s::Body::from(part).into()),
            ..Default::default()
        }))
    }

    async fn list_objects_v2(
        &self,
        request: S3Request<ListObjectsV2Input>,
    ) -> S3Result<S3Response<ListObjectsV2Output>> {
        /// Objects per page; few, so that lists have several pages.
        const OBJECTS_PER_PAGE: usize = 5;
        let input = request.input;
        let (root, prefix) = (
            self.file(&input.bucket, "")?,
            input.prefix.unwrap_or_default(),
        );
        let after = input.continuation_token.unwrap_or_default();
        let mut objects: Vec<Object> = files_below(&root)
            .iter()
            .map(|file| {
                let key = file
                    .strip_prefix(&root)
                    .unwrap()
                    .to_str()
                    .unwrap()
                    .to_owned();
                let size = Some(file.metadata().map_or(0, |it| it.len()) as i64);
                Object {
                    key: Some(key),
                    size,
                    last_modified: now(),
                    ..Default::default()
                }
            })
            .filter(|object| {
                let key = object.key.as_ref().unwrap();
                key.starts_with(&prefix) && *key > after
            })
            .collect();
        objects.sort_by_key(|object| object.key.clone());
        let is_truncated = objects.len() > OBJECTS_PER_PAGE;
        objects.truncate(OBJECTS_PER_PAGE);
        let next = objects.last().and_then(|object| object.key.clone());
        Ok(S3Response::new(ListObjectsV2Output {
            name: Some(input.bucket),
            contents: Some(objects),
            is_truncated: Some(is_truncated),
            next_continuation_token: next.filter(|_| is_truncated),
            ..Default::default()
        }))
    }

    async fn delete_objects(
        &self,
        request: S3Request<DeleteObjectsInput>,
    ) -> S3Result<S3Response<DeleteObjectsOutput>> {
        let input = request.input;
        let mut deleted = Vec::new();
        for object in input.delete.objects {
            _ = std::fs::remove_file(self.file(&input.bucket, &object.key)?);
            deleted.push(DeletedObject {
                key: Some(object.key),
                ..Default::default()
            });
        }
        let deleted = Some(deleted);
        Ok(S3Response::new(DeleteObjectsOutput {
            deleted,
            ..Default::default()
        }))
    }

    async fn create_multipart_upload(
        &self,
        request: S3Request<CreateMultipartUploadInput>,
    ) -> S3Result<S3Response<CreateMultipartUploadOutput>> {
        let upload_id = Some(Keys::generate().public_key().to_hex());
        Ok(S3Response::new(CreateMultipartUploadOutput {
            bucket: Some(request.input.bucket),
            key: Some(request.input.key),
            upload_id,
            ..Default::default()
        }))
    }

    async fn upload_part(
        &self,
        request: S3Request<UploadPartInput>,
    ) -> S3Result<S3Response<UploadPartOutput>> {
        let UploadPartInput {
            upload_id,
            part_number,
            body,
            ..
        } = request.input;
        let content = content(body).await;
        std::fs::write(self.part(&upload_id, part_number), &content).unwrap();
        let e_tag = e_tag(&content);
        Ok(S3Response::new(UploadPartOutput {
            e_tag,
            ..Default::default()
        }))
    }

    async fn complete_multipart_upload(
        &self,
        request: S3Request<CompleteMultipartUploadInput>,
    ) -> S3Result<S3Response<CompleteMultipartUploadOutput>> {
        let CompleteMultipartUploadInput {
            bucket,
            key,
            upload_id,
            multipart_upload,
            ..
        } = request.input;
        let mut whole = Vec::new();
        for part in multipart_upload.unwrap().parts.unwrap() {
            let file = self.part(&upload_id, part.part_number.unwrap());
            whole.extend(std::fs::read(file).map_err(|_| s3_error!(NoSuchUpload))?);
        }
        self.write(&bucket, &key, &whole)?;
        let e_tag = e_tag(&whole);
        let (bucket, key) = (Some(bucket), Some(key));
        Ok(S3Response::new(CompleteMultipartUploadOutput {
            bucket,
            key,
            e_tag,
            ..Default::default()
        }))
    }
}

async fn serve(listener: TcpListener, service: Arc<S3Service>, shared: Arc<Mutex<Shared>>) {
    loop {
        let (socket, _) = listener.accept().await.unwrap();
        let (service, shared) = (service.clone(), shared.clone());
        let answer = service_fn(move |request| answer(service.clone(), shared.clone(), request));
        let connection = hyper::server::conn::http1::Builder::new();
        tokio::spawn(connection.serve_connection(TokioIo::new(socket), answer));
    }
}

type Answer = Response<http_body_util::combinators::UnsyncBoxBody<Bytes, io::Error>>;

async fn answer(
    service: Arc<S3Service>,
    shared: Arc<Mutex<Shared>>,
    request: Request<Incoming>,
) -> Result<Answer, io::Error> {
    let (method, path) = (request.method().to_string(), request.uri().to_string());
    let fault = {
        let mut shared = shared.lock().unwrap();
        shared.requests.push((method.clone(), path.clone()));
        shared
            .script
            .as_mut()
            .and_then(|script| script(&method, &path))
    };
    match &fault {
        Some(Fault::Unavailable) => {
            // The body is read, or the client would see a broken connection.
            _ = request.into_body().collect().await;
            return Ok(text(
                StatusCode::SERVICE_UNAVAILABLE,
                "<Error><Code>SlowDown</Code></Error>",
            ));
        }
        Some(Fault::Slow(time)) => tokio::time::sleep(*time).await,
        Some(Fault::Held(arrived, go_on)) => {
            arrived.add_permits(1);
            go_on.acquire().await.unwrap().forget();
        }
        _ => {}
    }
    let request = request.map(s3s::Body::from);
    let answer = service
        .call(request)
        .await
        .map_err(|_| io::Error::other("no answer"))?;
    match fault {
        Some(Fault::LostAnswer) => Err(io::ErrorKind::ConnectionReset.into()),
        Some(Fault::CutAnswer) => {
            let (parts, body) = answer.into_parts();
            let body = body.collect().await.map_err(io::Error::other)?.to_bytes();
            let half = body.slice(..body.len() / 2);
            let cut = [
                Ok(Frame::data(half)),
                Err(io::ErrorKind::ConnectionReset.into()),
            ];
            let body = http_body_util::StreamBody::new(futures_util::stream::iter(cut));
            Ok(Response::from_parts(parts, body.boxed_unsync()))
        }
        _ => Ok(answer.map(|body| body.map_err(io::Error::other).boxed_unsync())),
    }
}

fn text(status: StatusCode, text: &'static str) -> Answer {
    let body = http_body_util::Full::new(Bytes::from_static(text.as_bytes()));
    let body = body
        .map_err(|never: Infallible| match never {})
        .boxed_unsync();
    let mut answer = Response::new(body);
    *answer.status_mut() = status;
    answer
}
