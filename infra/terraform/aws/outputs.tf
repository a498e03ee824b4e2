output "bucket" {
  description = "Where dumps/, corpora/ and runs/ go."
  value       = "s3://${aws_s3_bucket.data.bucket}"
}

output "connect" {
  description = "The line that lets kubectl reach the cluster."
  value       = "aws eks update-kubeconfig --region ${var.region} --name ${aws_eks_cluster.this.name}"
}
